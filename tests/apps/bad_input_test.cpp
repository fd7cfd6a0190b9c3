// What a user gets wrong, through the shipped program: the exit code and the message of each, and that nothing is left
// behind. The readers' own faults are in tests/invalid; here are the words of the command line, and files as such.
#include <sys/stat.h>

#include "program.hpp"

namespace {

struct Wrong {
  const char* words;
  const char* message;
  int code = 2;
};

class BadInput : public Program {
 protected:
  void expect(const Wrong& w) const {
    const Outcome r = run(w.words);
    EXPECT_EQ(r.code, w.code) << w.words << "\n" << r.out << r.err;
    EXPECT_TRUE(has(r.err, w.message)) << w.words << "\n" << r.err;
    EXPECT_TRUE(r.out.empty()) << w.words << "\n" << r.out;
    EXPECT_TRUE(r.err.starts_with("windtunnel: ")) << r.err;
    EXPECT_LT(r.err.size(), 2000u) << w.words;
  }
  std::string file(const char* name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return in_folder(name);
  }
};

TEST_F(BadInput, NumbersOfTheCommandLine) {
  const Wrong table[] = {
      {"audit --flops nan --gpus 8 --days 3", "--flops: 'nan' is not a number from 1 to 1e+40"},
      {"audit --flops 1e20 --gpus 8 --days inf", "--days: 'inf' is not a number from 1e-06 to 1e+06"},
      {"audit --flops 1e20 --gpus 8 --mfu -1", "--mfu: '-1' is not a number from 1e-06 to 100"},
      {"audit --flops 1e400 --gpus 8 --days 3", "--flops: '1e400' is not a number"},
      {"audit --flops 1e20x --gpus 8 --days 3", "--flops: '1e20x' is not a number"},
      {"audit --flops 1e20 --gpus 0 --days 3", "--gpus: '0' is not a whole number from 1 to 1000000000"},
      {"audit --flops 1e20 --gpus 99999999999999999999 --days 3", "--gpus: '99999999999999999999' is not a whole"},
      {"audit --flops 1e20 --gpus 8.5 --days 3", "--gpus: '8.5' is not a whole number"},
      {"audit --gpu h100 --tflops 1e308", "--tflops: '1e308' is not a number from"},
      {"audit --model llama3-8b --seq-len 1e30 --tokens 1e12 --gpus 8 --days 1", "--seq-len: '1e30'"},
      {"simulate examples/tiny-gpt.yaml --nodes 9223372036854775807", "--nodes: '9223372036854775807' is not a whole"},
      {"run examples/tiny-gpt.yaml --steps 1.5", "--steps: '1.5' is not a whole number from 1 to 2147483648"},
      {"run examples/tiny-gpt.yaml --steps nan", "--steps: 'nan' is not a whole number"},
      {"run examples/tiny-gpt.yaml --warmup -1", "--warmup: '-1' is not a whole number from 0"},
      {"run examples/tiny-gpt.yaml --threads 0", "--threads: '0' is not a whole number from 1 to 1024"},
      {"run examples/tiny-gpt.yaml --rate nan", "--rate: 'nan' is not a number from 1e-12 to 1e+06"},
      {"run examples/tiny-gpt.yaml --rate-floor inf", "--rate-floor: 'inf' is not a number"},
      {"run examples/tiny-gpt.yaml --timeout nan", "--timeout: 'nan' is not a number"},
      {"diff a.wttrace b.wttrace --warm-up -1", "--warm-up: '-1' is not a whole number from 0 to 2147483648"},
      {"diff a.wttrace b.wttrace --rows 0", "--rows: '0' is not a whole number from 1 to 1048576"},
      {"validate x.yaml --threads -1", "--threads: '-1' is not a whole number from 1 to 1024"},
  };
  for (const Wrong& w : table) expect(w);
}

TEST_F(BadInput, WordsOfTheCommandLine) {
  const Wrong table[] = {
      {"", "subcommand is required"},
      {"smulate examples/tiny-gpt.yaml", "windtunnel --help"},
      {"simulate", "windtunnel simulate --help"},
      {"simulate examples/tiny-gpt.yaml --flops 7n", "--flops: 7n not in"},
      {"simulate examples/tiny-gpt.yaml --set strategy", "--set strategy: is not of the form key=value"},
      {"simulate examples/tiny-gpt.yaml --set strategy.tensor=", "is empty, expected a whole number"},
      {"simulate examples/tiny-gpt.yaml --set 'strategy={tensor: 2, tensor: 4}'", "key 'tensor' is written twice"},
      {"simulate examples/tiny-gpt.yaml --set training.micro_batch=nan", "'nan' is not a whole number"},
      {"simulate examples/tiny-gpt.yaml --set 'cluster.device.memory=1e300 GiB'", "'1e300 GiB' is too large"},
      {"simulate examples/tiny-gpt.yaml --set cluster.device.memory=80", "80"},
      {"simulate examples/tiny-gpt.yaml --trace x.txt", "x.txt: no trace format has this ending (legal: .wttrace"},
      {"audit --gpu h1000 --flops 1e24 --gpus 8 --days 3", "no device 'h1000'"},
      {"audit --model llama3-8b --tokens-per-s-per-gpu 100 examples/tiny-gpt.yaml", "leave out --model"},
      {"audit --tokens-per-s-per-gpu 100", "--tokens-per-s-per-gpu: says nothing without a model"},
  };
  for (const Wrong& w : table) expect(w);
}

TEST_F(BadInput, SizesBeyondWhatCanBeCountedOrTimed) {
  expect({"simulate examples/tiny-gpt.yaml --set training.seq_len=2147483648 --set model.max_context=2147483648",
          "one op may take 576461 s"});
  expect(
      {"simulate examples/tiny-gpt.yaml --set training.seq_len=2147483648 --set model.max_context=2147483648 "
       "--set model.layers=4096 --set training.micro_batch=1048576 --set training.global_batch=8388608",
       "are more bytes than can be counted", 3});
  expect({"simulate examples/tiny-gpt.yaml --set 'cluster.node.scale_up.bandwidth=0.1 B/s'", "what was meant?"});
  expect({"simulate examples/tiny-gpt.yaml --set training.seq_len=64 --set 'cluster.node.scale_up.bandwidth=1 B/s'",
          "the ops of its step would take"});
}

TEST_F(BadInput, FilesThatAreNone) {
  const std::string readers[] = {"simulate @",
                                 "plan @",
                                 "audit @ --days 3",
                                 "audit --model @ --tokens 1e12 --gpus 8 --days 3",
                                 "audit --gpu @ --flops 1e20 --gpus 8 --days 3",
                                 "simulate examples/tiny-gpt.yaml --cluster @",
                                 "simulate examples/tiny-gpt.yaml --set model=@",
                                 "simulate examples/tiny-gpt.yaml --set cluster.device=@",
                                 "validate @",
                                 "validate examples/tiny-gpt.yaml --ids @",
                                 "convert @ " + in_folder("out.json")};
  std::vector<std::pair<std::string, const char*>> files = {
      {"./examples", "is a directory"},
      {"/no/such.yaml", "/no/such.yaml"},
      {"/proc/self/mem", "/proc/self/mem: cannot read"},  // opens, and fails when it is read
      {file("empty.yaml", ""), "empty.yaml"},
      {file("latin1.yaml", "name: caf\xe9\n"), "latin1.yaml"},
      {file("zeros.yaml", std::string(100, '\0')), "zeros.yaml"},
  };
  if (::mkfifo(in_folder("pipe.yaml").c_str(), 0600) == 0)          // not every file system has them
    files.emplace_back(in_folder("pipe.yaml"), "is a named pipe");  // nobody writes to it: not waited for
  for (const std::string& reader : readers)
    for (const auto& [path, message] : files) {
      std::string words = reader;
      words.replace(words.find('@'), 1, path);
      const Outcome r = run(words);
      EXPECT_EQ(r.code, 2) << words << "\n" << r.out;
      EXPECT_TRUE(has(r.err, message)) << words << "\n" << r.err;
      EXPECT_TRUE(r.out.empty()) << words;
    }
  EXPECT_FALSE(fs::exists(folder_ / "out.json"));
}

TEST_F(BadInput, EveryFaultOfAFileAtOnce) {
  const std::string path = file("job.yaml",
                                "model: {from: llama3-8b, layers: 0, hidden: x}\n"
                                "cluster: {from: dgx-h100, node: 2}\n"
                                "strategy: {tensr: 4}\n"
                                "training: {micro_batch: 1, global_batch: 8, seq_len: .nan, precision: bf17}\n");
  const Outcome r = run("simulate " + path);
  EXPECT_EQ(r.code, 2);
  for (const char* piece : {"job.yaml:1:", "layers", "'x' is not a whole number",
                            "job.yaml:2:", "job.yaml:3:", "did you mean 'tensor'", "job.yaml:4:", "'.nan'", "bf17"})
    EXPECT_TRUE(has(r.err, piece)) << piece << "\n" << r.err;
}

TEST_F(BadInput, WhatOnlyTheWholeJobShowsHasItsPlaceToo) {
  const std::string path = file("job.yaml",
                                "model: llama3-8b\n"
                                "cluster: {from: dgx-h100, nodes: 4}\n"
                                "strategy:\n"
                                "  tensor: 3\n"
                                "training: {micro_batch: 1, global_batch: 255, seq_len: 4096}\n");
  const std::string simulate = "simulate " + path;
  expect({simulate.c_str(), "job.yaml:4:11: strategy.tensor: 32 attention heads do not divide", 3});
  expect({simulate.c_str(), "job.yaml:4:3: strategy: 32 ranks", 3});
  const std::string batch = simulate + " --set strategy.tensor=4";
  expect({batch.c_str(), "job.yaml:5:42: training.global_batch: 255 is not a multiple", 3});
  const std::string nodes = simulate + " --nodes 0x";
  expect({nodes.c_str(), "--nodes: '0x' is not a whole number"});
  const std::string set = "plan " + path + " --set strategy.tensor=5 --set training.global_batch=256";
  expect({set.c_str(), "--set strategy.tensor=5: 32 attention heads", 3});
  const std::string by_default = simulate +
                                 " --set strategy.tensor=4 --set training.global_batch=256 --set "
                                 "strategy.schedule=interleaved";
  expect({by_default.c_str(), "job.yaml: default of strategy.virtual_stages: ", 3});
  const std::string cluster = simulate + " --cluster nosuch";
  expect({cluster.c_str(), "windtunnel: --cluster nosuch: no built-in cluster 'nosuch'"});
  const std::string model = simulate + " --set model.heads=30";
  expect({model.c_str(),
          "--set model.heads=30: 8 key/value heads do not divide 30 heads (legal: kv_heads 6, 10; or "
          "heads 24, 32)"});
}

TEST_F(BadInput, AFaultOfTheReadersHidesNoneOfLowering) {
  const std::string path = file("job.yaml",
                                "model: llama3-8b\n"
                                "cluster: {from: dgx-h100, nodes: 3}\n"
                                "training: {micro_batch: 1, global_batch: 24, seq_len: 4096}\n");
  const std::string words = "simulate " + path +
                            " --set strategy.schedule=2f2b --set training.precision=bf61 --set strategy.tensor=3 --set "
                            "strategy.pipeline=x";
  for (const char* piece :
       {"--set training.precision=bf61: unknown precision", "--set strategy.schedule=2f2b: unknown schedule",
        "--set strategy.tensor=3: 32 attention heads", "--set strategy.pipeline=x: 'x' is not a whole number"})
    expect({words.c_str(), piece});
  // 24 ranks hold 8 stages of 3 or 4 of 6: how many there are hangs on the key that could not be read.
  const Outcome r = run(words);
  EXPECT_FALSE(has(r.err, "global_batch")) << r.err;
  EXPECT_FALSE(has(r.err, "ranks")) << r.err;
}

TEST_F(BadInput, EveryWrongNumberOfTheCommandLineAtOnce) {
  const Outcome r = run("audit --flops -3 --days 0 --mfu 7 --gpu foo");
  EXPECT_EQ(r.code, 2);
  for (const char* piece : {"--flops: '-3' is not", "--days: '0' is not", "--gpu: no device 'foo'"})
    EXPECT_TRUE(has(r.err, piece)) << piece << "\n" << r.err;
}

TEST_F(BadInput, AWordThatIsNoCommandIsNamed) {
  expect({"simulat job.yaml", "no command 'simulat'; did you mean 'simulate'"});
  expect({"bogus", "no command 'bogus'"});
  expect({"", "A subcommand is required"});
}

TEST_F(BadInput, OutputsThatCannotBeWritten) {
  fs::create_directory(folder_ / "folder.json");
  expect({"simulate examples/tiny-gpt.yaml --trace /no/such/folder/x.json", "/no/such/folder/x.json: cannot write", 4});
  const std::string folder = "simulate examples/tiny-gpt.yaml --trace " + in_folder("folder.json");
  expect({folder.c_str(), "is a directory", 4});
  expect({"export examples/tiny-gpt.yaml --to megatron -o /no/such/folder/x.sh", "/no/such/folder/x.sh", 4});
  expect({"calibrate /no/such/folder/x.yaml", "/no/such/folder/x.yaml", 4});
  expect({"search examples/tiny-gpt.yaml --results /no/such/folder/x.jsonl", "/no/such/folder/x.jsonl", 4});
  const std::string config = in_folder("ds_config.json");
  ASSERT_EQ(run("export examples/tiny-gpt.yaml --to deepspeed -o " + config).code, 0);
  const std::string import = "import " + config +
                             " --model examples/llama3-70b-config.json --cluster dgx-h100 --nodes 1 --set "
                             "training.seq_len=128 --set training.precision=bf16 -o /no/such/folder/x.yaml";
  const Outcome imported = run(import);  // its report is told before the job is written
  EXPECT_EQ(imported.code, 4) << imported.err;
  EXPECT_TRUE(has(imported.err, "/no/such/folder/x.yaml")) << imported.err;
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  fs::create_symlink("/dev/full", folder_ / "full.json");
  const std::string full = "simulate examples/tiny-gpt.yaml --trace " + in_folder("full.json");
  expect({full.c_str(), "No space left on device", 4});
  ASSERT_EQ(run("simulate examples/tiny-gpt.yaml --trace " + in_folder("t.wttrace")).code, 0);
  const std::string itself = "convert " + in_folder("t.wttrace") + " " + in_folder("./t.wttrace");
  expect({itself.c_str(), "is the trace itself"});
  const std::string convert = "convert " + in_folder("t.wttrace") + " " + in_folder("full.json");
  expect({convert.c_str(), "No space left on device", 4});
  size_t left = 0;
  for (const auto& f : fs::directory_iterator(folder_)) left += has(f.path().filename().string(), ".part");
  EXPECT_EQ(left, 0u);
}

}  // namespace
