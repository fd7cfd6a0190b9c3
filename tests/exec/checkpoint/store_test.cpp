// Checkpoints saved and loaded by ranks of plans: the same mesh bit for bit, other meshes, and every way to break one.
#include "exec/checkpoint/store.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/exec/checkpoint/ranks.hpp"

namespace wt::exec {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Store : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("wt_checkpoint_{}_{}", ::getpid(),
                                                      testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    root = folder_ / "checkpoints";
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string root;
  fs::path folder_;
};

std::string slurp(const fs::path& p) {
  std::ostringstream s;
  s << std::ifstream(p, std::ios::binary).rdbuf();
  return s.str();
}
void spit(const fs::path& p, const std::string& bytes) { std::ofstream(p, std::ios::binary) << bytes; }

Progress at_step(int64_t step) { return {step, 1, step * 16, 42, 0.1 / 3.0, 1024, 7}; }

std::string faults(const Result<std::optional<Loaded>>& r) { return r ? "" : to_text(r.errors()); }

TEST_F(Store, TheSameMeshLoadsBitForBitWithItsProgress) {
  const Job job = job_of({"strategy.tensor=2", "strategy.pipeline=2", "training.precision=bf16",
                          "strategy.data_parallel=distributed_optimizer", "cluster.nodes=2"});
  Ranks ranks(job);
  ranks.fill(1);
  ASSERT_TRUE(ranks.save(root, job.digest(), at_step(10)));
  ranks.fill(2);
  ASSERT_TRUE(ranks.save(root, job.digest(), at_step(20)));
  const auto loaded = ranks.load(root);
  ASSERT_TRUE(loaded) << faults(loaded);
  ASSERT_TRUE(loaded.value());
  EXPECT_EQ(loaded.value()->progress, at_step(20));
  EXPECT_EQ(loaded.value()->plan_digest, job.digest());
  EXPECT_TRUE(loaded.value()->passed_over.empty());
  EXPECT_EQ(ranks.wrong(2), 0);
  EXPECT_GT(ranks.wrong(1), 0);
}

TEST_F(Store, AnEmptyDirectoryHasNone) {
  const Job job = job_of({"cluster.node.devices=1"});
  Ranks ranks(job);
  const auto loaded = ranks.load(root);
  ASSERT_TRUE(loaded) << faults(loaded);
  EXPECT_FALSE(loaded.value());
}

TEST_F(Store, EveryMeshLoadsWhatAnyOtherSaved) {
  const std::vector<std::vector<std::string>> meshes = {
      {"strategy.tensor=2"},  // x data 2
      {},                     // data 4
      {"strategy.tensor=4"},
      {"cluster.node.devices=1"},
      {"strategy.pipeline=2"},
      {"strategy.pipeline=2", "strategy.virtual_stages=2", "strategy.schedule=interleaved"},
      {"strategy.tensor=2", "strategy.data_parallel=distributed_optimizer"},
      {"strategy.data_parallel=distributed_optimizer", "strategy.overlap_grad_reduce=true",
       "strategy.bucket_elements=20000"},
      {"strategy.tensor=2", "strategy.data_parallel=zero1"},
      {"strategy.pipeline=2", "strategy.data_parallel=distributed_optimizer"},
  };
  std::vector<Job> jobs;
  for (std::vector<std::string> mesh : meshes) {
    if (kThreadSanitizer && jobs.size() == 3) break;
    mesh.push_back("training.precision=bf16");
    jobs.push_back(job_of(mesh));
  }
  for (size_t from = 0; from < jobs.size(); ++from) {
    Ranks saved(jobs[from]);
    saved.fill(from);
    const std::string path = fmt::format("{}{}", root, from);
    ASSERT_TRUE(saved.save(path, jobs[from].digest(), at_step(1)));
    for (size_t to = 0; to < jobs.size(); ++to) {
      Ranks ranks(jobs[to]);
      const auto loaded = ranks.load(path);
      ASSERT_TRUE(loaded) << from << " to " << to << ": " << faults(loaded);
      ASSERT_EQ(ranks.wrong(from), 0) << from << " to " << to;
    }
  }
}

// tiny-llama's vocabulary is padded to another size when it is cut in more parts.
TEST_F(Store, APaddedVocabularyMayBePaddedOtherwise) {
  const std::vector<std::string> odd = {"model.vocab=250", "training.vocab_multiple=2"};
  auto with = [&](const char* tensor) {
    std::vector<std::string> all = odd;
    all.emplace_back(tensor);
    return job_of(all, "tiny-llama");
  };
  const Job narrow = with("strategy.tensor=1"), wide = with("strategy.tensor=2");
  auto rows = [](const Job& job) {
    const RankMemory m(job.plan, RankId{0});
    for (const Holding& h : m.holdings)
      if (h.tensor.name == "embedding") return h.layout.global_shape()[0];
    return int64_t{0};
  };
  EXPECT_EQ(rows(narrow), 250);
  EXPECT_EQ(rows(wide), 252);
  for (const auto& [a, b] : {std::pair(&narrow, &wide), std::pair(&wide, &narrow)}) {
    Ranks saved(*a), ranks(*b);
    saved.fill(5);
    ASSERT_TRUE(saved.save(root, a->digest(), at_step(1)));
    const auto loaded = ranks.load(root);
    ASSERT_TRUE(loaded) << faults(loaded);
    EXPECT_EQ(ranks.wrong(5), 0);
    fs::remove_all(root);
  }
}

TEST_F(Store, TheNewestAreKept) {
  const Job job = job_of({});
  Ranks ranks(job);
  for (const int64_t step : {10, 20, 30, 40}) ASSERT_TRUE(ranks.save(root, 1, at_step(step), 3));
  std::vector<int64_t> steps;
  for (const FoundCheckpoint& f : list_checkpoints(root)) steps.push_back(f.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{40, 30, 20}));
  EXPECT_EQ(std::distance(fs::directory_iterator(root), fs::directory_iterator()), 3);
}

TEST_F(Store, AStepSavedAgainTakesThePlaceOfTheFirst) {
  const Job job = job_of({});
  Ranks ranks(job);
  ranks.fill(1);
  ASSERT_TRUE(ranks.save(root, 1, at_step(10)));
  ranks.fill(2);
  ASSERT_TRUE(ranks.save(root, 1, at_step(10)));
  EXPECT_EQ(list_checkpoints(root).size(), 1u);
  ASSERT_TRUE(ranks.load(root));
  EXPECT_EQ(ranks.wrong(2), 0);
  // Died between the two renames: the old one still counts.
  fs::rename(checkpoint_path(root, 10), checkpoint_path(root, 10) + ".replaced");
  const auto loaded = ranks.load(root);
  ASSERT_TRUE(loaded) << faults(loaded);
  ASSERT_TRUE(loaded.value());
  EXPECT_EQ(ranks.wrong(2), 0);
}

TEST_F(Store, AnAsynchronousSaveHoldsTheStateOfItsCall) {
  const Job job = job_of({"strategy.tensor=2", "strategy.data_parallel=distributed_optimizer"});
  Ranks ranks(job);
  ranks.fill(1);
  ranks.each([&](RankMemory& m, const Team& team) {
    Saver saver({root, 2, true}, team, m.device);
    for (uint64_t step = 1; step <= 3; ++step) {
      m.fill(step);
      const Status s = saver.save({job.digest(), at_step(static_cast<int64_t>(step)), m.holdings});
      EXPECT_TRUE(s) << to_text(s.errors());
      m.fill(99);  // training goes on at once
    }
    const Status s = saver.finish();
    EXPECT_TRUE(s) << to_text(s.errors());
  });
  const auto loaded = ranks.load(root);
  ASSERT_TRUE(loaded) << faults(loaded);
  EXPECT_EQ(loaded.value()->progress.step, 3);
  EXPECT_EQ(ranks.wrong(3), 0);
}

// --------------------------------------------------------------------------------------------------- broken ones

class Broken : public Store {
 protected:
  void SetUp() override {
    Store::SetUp();
    job = job_of({"strategy.tensor=2"});
    ranks.emplace(job);
    ranks->fill(1);
    ASSERT_TRUE(ranks->save(root, job.digest(), at_step(10)));
    ranks->fill(2);
    ASSERT_TRUE(ranks->save(root, job.digest(), at_step(20)));
    newest = checkpoint_path(root, 20);
  }
  /// The newest is broken: the one before loads, and the fault is told.
  std::string passed_over() {
    const auto loaded = ranks->load(root);
    EXPECT_TRUE(loaded) << faults(loaded);
    if (!loaded || !loaded.value()) return "nothing was loaded";
    EXPECT_EQ(loaded.value()->progress.step, 10);
    EXPECT_EQ(ranks->wrong(1), 0);
    return to_text(loaded.value()->passed_over);
  }
  /// Of `load_checkpoint` of the newest by name.
  std::string named() {
    std::string text;
    ranks->each([&](RankMemory& m, const Team& team) {
      const auto loaded = load_checkpoint(newest, m.holdings, team, m.device);
      EXPECT_FALSE(loaded);
      if (!loaded && team.rank.v == 0) text = to_text(loaded.errors());
    });
    return text;
  }
  Job job;
  std::optional<Ranks> ranks;
  std::string newest;
};

TEST_F(Broken, ACutFile) {
  const fs::path file = fs::path(newest) / "rank-00001.wtckpt";
  const std::string bytes = slurp(file);
  for (const size_t size : {bytes.size() - 1, bytes.size() / 2, size_t{80}, size_t{10}, size_t{0}}) {
    spit(file, bytes.substr(0, size));
    const std::string text = passed_over();
    EXPECT_THAT(text, HasSubstr("rank 1, " + file.string()));
    EXPECT_THAT(text, HasSubstr(fmt::format("is cut: {} of {} bytes", size, bytes.size())));
    EXPECT_THAT(named(), HasSubstr("rank 1, " + file.string()));
  }
}

TEST_F(Broken, AFlippedBitAnywhere) {
  const fs::path file = fs::path(newest) / "rank-00001.wtckpt", manifest = fs::path(newest) / "manifest.json";
  const std::string bytes = slurp(file), text = slurp(manifest);
  // In the head, in a piece, in the index, in the end; the padding between pieces is nobody's.
  for (const size_t at : {size_t{3}, size_t{8}, size_t{13}, size_t{70}, bytes.size() / 4, bytes.size() - 100,
                          bytes.size() - 30, bytes.size() - 2}) {
    std::string bad = bytes;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    spit(file, bad);
    EXPECT_THAT(passed_over(), HasSubstr("rank 1, " + file.string())) << "byte " << at;
  }
  spit(file, bytes);
  for (size_t at = 0; at < text.size(); at += 1 + text.size() / 40) {
    std::string bad = text;
    bad[at] = static_cast<char>(bad[at] ^ 0x01);
    spit(manifest, bad);
    EXPECT_THAT(passed_over(), HasSubstr(manifest.string())) << "byte " << at;
  }
}

TEST_F(Broken, AMissingFile) {
  fs::remove(fs::path(newest) / "rank-00000.wtckpt");
  EXPECT_THAT(passed_over(), HasSubstr("rank-00000.wtckpt: cannot open: No such file"));
}

TEST_F(Broken, AFileOfAnotherRankOrStep) {
  const fs::path here = fs::path(newest) / "rank-00001.wtckpt";
  fs::copy_file(fs::path(newest) / "rank-00000.wtckpt", here, fs::copy_options::overwrite_existing);
  EXPECT_THAT(passed_over(), testing::AnyOf(HasSubstr("is of rank 0 of 4"), HasSubstr("bytes")));
  fs::copy_file(fs::path(checkpoint_path(root, 10)) / "rank-00001.wtckpt", here, fs::copy_options::overwrite_existing);
  EXPECT_THAT(passed_over(), HasSubstr("is of rank 1 of 4, step 10"));
}

TEST_F(Broken, AnotherVersion) {
  const fs::path manifest = fs::path(newest) / "manifest.json", file = fs::path(newest) / "rank-00001.wtckpt";
  const std::string text = slurp(manifest), bytes = slurp(file);
  std::string newer = text;
  newer.replace(newer.find("\"version\": 1"), 12, "\"version\": 2");
  spit(manifest, newer);
  EXPECT_THAT(passed_over(), HasSubstr("is of version 2 (this program reads version 1)"));
  spit(manifest, text);
  std::string file_of_newer = bytes;
  file_of_newer[8] = 2;
  spit(file, file_of_newer);
  EXPECT_THAT(passed_over(), HasSubstr("rank 1, " + file.string() + ": is of version 2"));
}

TEST_F(Broken, AllOfThem) {
  for (const FoundCheckpoint& f : list_checkpoints(root)) spit(fs::path(f.path) / "manifest.json", "{}");
  const auto loaded = ranks->load(root);
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.errors().size(), 2u);
  EXPECT_THAT(faults(loaded), HasSubstr("is not the manifest of a checkpoint"));
}

TEST_F(Broken, AnotherModel) {
  auto refused = [&](const std::vector<std::string>& overrides, const char* example = "tiny-gpt") {
    const Job other = job_of(overrides, example);
    Ranks theirs(other);
    const auto loaded = theirs.load(root);
    EXPECT_FALSE(loaded);
    return faults(loaded);
  };
  EXPECT_THAT(refused({"model.ffn_hidden=512"}), HasSubstr("fc1, layer 0 is [256, 64] and the plan's is [512, 64]"));
  EXPECT_THAT(refused({"model.layers=8"}), HasSubstr("has no norm1.gamma, layer 4"));
  EXPECT_THAT(refused({"training.precision=bf16"}), HasSubstr("is f32 and the run's is bf16"));
  EXPECT_THAT(refused({}, "tiny-llama"), HasSubstr("another model"));
  EXPECT_LT(refused({}, "tiny-llama").size(), 20000u);  // the commonest faults, not all of them
}

// The plan's own words for what a rank holds are trusted by nobody: a piece that was never written is missed.
TEST_F(Broken, ElementsThatNoRankWrote) {
  ranks->each([&](RankMemory& m, const Team& team) {
    std::vector<Holding> some = m.holdings;
    if (team.rank.v == 1) std::erase_if(some, [](const Holding& h) { return h.tensor.name == "fc1"; });
    Saver saver({root, 3, false}, team, m.device);
    EXPECT_TRUE(saver.save({job.digest(), at_step(30), some}));
  });
  const auto loaded = ranks->load(root);
  ASSERT_TRUE(loaded) << faults(loaded);
  EXPECT_EQ(loaded.value()->progress.step, 20);
  EXPECT_THAT(to_text(loaded.value()->passed_over), HasSubstr("8192 of 8192 elements of fc1, layer 0 are on no rank"));
}

TEST_F(Broken, AFolderThatCannotBeMade) {
  spit(folder_ / "file", "");
  const Status s = ranks->save((folder_ / "file").string() + "/below", job.digest(), at_step(30));
  ASSERT_FALSE(s);
  EXPECT_THAT(to_text(s.errors()), HasSubstr("rank 0, " + (folder_ / "file").string()));
  EXPECT_THAT(to_text(s.errors()), HasSubstr("cannot be made"));
}

/// A file may not grow past this many bytes: what a full disk does, where no small one can be mounted.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(Broken, AFileThatMayNotGrow) {
  for (const bool asynchronous : {false, true}) {
    {
      const FileLimit limit(20000);
      ranks->each([&](RankMemory& m, const Team& team) {
        Saver saver({root, 2, asynchronous}, team, m.device);
        Status s = saver.save({job.digest(), at_step(30), m.holdings});
        if (asynchronous) {
          EXPECT_TRUE(s);  // told by finish
          s = saver.finish();
        }
        ASSERT_FALSE(s);
        EXPECT_THAT(to_text(s.errors()), HasSubstr("rank 1, " + checkpoint_path(root, 30) + ".partial/rank-00001"));
        EXPECT_THAT(to_text(s.errors()), HasSubstr("File too large"));
      });
    }
    EXPECT_FALSE(fs::exists(checkpoint_path(root, 30) + ".partial"));
    const auto loaded = ranks->load(root);
    ASSERT_TRUE(loaded) << faults(loaded);
    EXPECT_EQ(loaded.value()->progress.step, 20);
    EXPECT_EQ(ranks->wrong(2), 0);
  }
}

TEST_F(Broken, AFullDisk) {
  const fs::path disk = folder_ / "disk";
  fs::create_directories(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=3m") != 0) GTEST_SKIP() << "no file system may be mounted here";
  std::string text;
  {
    const std::string there = (disk / "checkpoints").string();
    ranks->fill(7);
    Status s = ok_status();
    int64_t good = 0;
    for (int64_t step = 1; step <= 60 && s; ++step) {
      s = ranks->save(there, job.digest(), at_step(step), 1000);
      good += s ? 1 : 0;
    }
    EXPECT_FALSE(s);
    EXPECT_GT(good, 0);
    text = s ? "" : to_text(s.errors());
    EXPECT_EQ(static_cast<int64_t>(list_checkpoints(there).size()), good);
    const auto loaded = ranks->load(there);
    EXPECT_TRUE(loaded) << faults(loaded);
    EXPECT_EQ(loaded && loaded.value() ? loaded.value()->progress.step : 0, good);
    EXPECT_EQ(ranks->wrong(7), 0);
    // Room again: the next save works.
    fs::remove_all(checkpoint_path(there, 1));
    EXPECT_TRUE(ranks->save(there, job.digest(), at_step(90), 1000));
  }
  EXPECT_EQ(::umount(disk.c_str()), 0);
  EXPECT_THAT(text, HasSubstr("No space left on device"));
  EXPECT_THAT(text, HasSubstr("rank "));
}

// A process that saves in a loop is killed at random moments; whatever it had finished loads whole.
TEST_F(Store, KilledAtAnyMomentTheLastGoodOneLoads) {
  if (kThreadSanitizer) GTEST_SKIP() << "the sanitizer does not follow threads of a forked process";
  const Job job = job_of({"cluster.node.devices=1"});
  int64_t last = 0;
  for (int round = 0; round < 15; ++round) {
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      RankMemory m(job.plan, RankId{0});
      Saver saver({root, 2, round % 2 == 1}, {}, m.device);
      for (int64_t step = last + 1;; ++step) {
        m.fill(static_cast<uint64_t>(step));
        if (!saver.save({job.digest(), at_step(step), m.holdings})) ::_exit(3);
        // Synchronous: this one is good. Asynchronous: the one before is.
        const int64_t good = round % 2 == 1 ? step - 1 : step;
        if (::write(told[1], &good, sizeof good) != sizeof good) ::_exit(4);
      }
    }
    ::close(told[1]);
    // From its first word on, so that a slow machine saves something too.
    int64_t promised = last;
    ASSERT_EQ(::read(told[0], &promised, sizeof promised), ssize_t{sizeof promised});
    ::usleep(9000 * static_cast<useconds_t>(round));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << WEXITSTATUS(status);
    for (int64_t step; ::read(told[0], &step, sizeof step) == sizeof step;) promised = step;
    ::close(told[0]);

    RankMemory m(job.plan, RankId{0});
    const auto loaded = load_newest(root, m.holdings, {}, m.device);
    ASSERT_TRUE(loaded) << faults(loaded);
    const int64_t got = loaded.value() ? loaded.value()->progress.step : 0;
    EXPECT_GE(got, promised) << "round " << round;
    if (loaded.value()) {
      EXPECT_TRUE(loaded.value()->passed_over.empty()) << to_text(loaded.value()->passed_over);
      EXPECT_EQ(m.wrong(static_cast<uint64_t>(got)), 0);
    }
    last = got;
  }
  EXPECT_GT(last, 0);
}

}  // namespace
}  // namespace wt::exec
