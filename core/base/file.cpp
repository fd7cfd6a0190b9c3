#include "core/base/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace wt {

namespace {

/// A pipe that somebody named, and that nobody may have opened to write: opening it could wait for ever. One that the shell
/// made, /dev/stdin or <(a command), has its writer.
bool waits_for_a_writer(const std::string& path) {
  for (const char* opened : {"/dev/stdin", "/dev/fd/", "/proc/self/fd/"})
    if (path.starts_with(opened)) return false;
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISFIFO(st.st_mode);
}

}  // namespace

Result<std::string> read_file(const std::string& path, int64_t limit_bytes) {
  auto fail = [&](std::string what, std::string hint = {}) {
    return Diagnostic{path, std::move(what), std::move(hint)};
  };
  if (waits_for_a_writer(path)) return fail("is a named pipe", "give a file, /dev/stdin or <(a command)");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fail(fmt::format("cannot open: {}", std::strerror(errno)));
  struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  struct stat st {};
  if (::fstat(fd, &st) != 0) return fail(fmt::format("cannot stat: {}", std::strerror(errno)));
  if (S_ISDIR(st.st_mode)) return fail("is a directory", "give a file");
  std::string out;
  char chunk[1 << 16];
  for (;;) {
    const ssize_t n = ::read(fd, chunk, sizeof chunk);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(fmt::format("cannot read: {}", std::strerror(errno)));
    if (n == 0) break;
    out.append(chunk, static_cast<size_t>(n));
    if (static_cast<int64_t>(out.size()) > limit_bytes)
      return fail(fmt::format("is larger than the limit of {} bytes", limit_bytes));
  }
  return out;
}

Status write_file_atomically(const std::string& path, std::string_view content) {
  const std::string aside = path + ".part" + std::to_string(::getpid());
  auto fail = [&](const char* call) -> Status {
    const int code = errno;
    ::unlink(aside.c_str());
    return Diagnostic{path, fmt::format("cannot write: {}: {}", call, std::strerror(code)), ""};
  };
  struct stat st {};
  if (::stat(path.c_str(), &st) == 0) {
    if (S_ISDIR(st.st_mode)) return Diagnostic{path, "cannot write: is a directory", "give a file"};
    if (!S_ISREG(st.st_mode)) {  // a device or a pipe (/dev/stdout): nothing to rename
      std::FILE* f = std::fopen(path.c_str(), "wb");
      if (!f) return fail("open");
      const bool wrote = std::fwrite(content.data(), 1, content.size(), f) == content.size();
      if ((std::fclose(f) != 0) || !wrote) return fail("write");
      return ok_status();
    }
  }
  const int fd = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return fail("open");
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::write(fd, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int code = errno;
      ::close(fd);
      errno = code;
      return fail("write");
    }
    done += static_cast<size_t>(n);
  }
  if (::close(fd) != 0) return fail("close");
  if (::rename(aside.c_str(), path.c_str()) != 0) return fail("rename");
  return ok_status();
}

}  // namespace wt
