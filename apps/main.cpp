// The command line, thin: parses words, calls the libraries, prints.
int main() { return 0; }
