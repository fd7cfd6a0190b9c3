// Whole files: every failure names the path and the reason, and a failed write leaves what was there.
#include "core/base/file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

namespace wt {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A folder of its own for each test. Permissions do not bind root, so tests about them run as `nobody` in a child.
class File : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "wt_file_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    ::chmod(dir_.c_str(), 0777);
  }
  void TearDown() override {
    ::chmod(dir_.c_str(), 0777);
    fs::remove_all(dir_);
  }
  std::string path(const char* name) const { return (dir_ / name).string(); }
  void put(const std::string& path, const std::string& content) const {
    std::FILE* f = std::fopen(path.c_str(), "wb");
    ASSERT_NE(f, nullptr);
    ASSERT_EQ(std::fwrite(content.data(), 1, content.size(), f), content.size());
    ASSERT_EQ(std::fclose(f), 0);
  }
  std::string get(const std::string& path) const {
    auto text = read_file(path);
    return text.ok() ? text.value() : to_text(text.errors());
  }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), fs::directory_iterator{}));
  }
  // The diagnostic of `action` run in a child process without root's rights, or "ok".
  static std::string as_nobody(const std::function<Status()>& action) {
    constexpr uid_t kNobody = 65534;
    int ends[2];
    if (::pipe(ends) != 0) return "pipe failed";
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      if (::geteuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) ::_exit(1);
      const Status status = action();
      const std::string text = status.ok() ? "ok" : to_text(status.errors());
      ::_exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    std::string out;
    char chunk[512];
    for (ssize_t n; (n = ::read(ends[0], chunk, sizeof chunk)) > 0;) out.append(chunk, static_cast<size_t>(n));
    ::close(ends[0]);
    int how = 0;
    ::waitpid(child, &how, 0);
    return how == 0 ? out : "child failed";
  }
  fs::path dir_;
};

TEST_F(File, ReadsAllBytes) {
  const std::string content = std::string("a\0b\r\n", 5) + std::string(200'000, 'x');
  put(path("f"), content);
  EXPECT_EQ(get(path("f")), content);
  put(path("empty"), "");
  EXPECT_EQ(get(path("empty")), "");
}

TEST_F(File, NamesTheMissingFile) {
  EXPECT_EQ(get(path("none")), path("none") + ": cannot open: No such file or directory\n");
}

TEST_F(File, RefusesToReadADirectory) {
  EXPECT_EQ(get(dir_.string()), dir_.string() + ": is a directory (give a file)\n");
}

TEST_F(File, RefusesToReadMoreThanTheLimit) {
  put(path("f"), std::string(100, 'x'));
  EXPECT_TRUE(read_file(path("f"), 100).ok());
  const auto refused = read_file(path("f"), 99);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(to_text(refused.errors()), HasSubstr("larger than the limit of 99 bytes"));
  EXPECT_FALSE(read_file("/dev/zero", 1 << 20).ok());  // endless input ends at the limit
}

TEST_F(File, NamesTheUnreadableFile) {
  put(path("secret"), "x");
  ASSERT_EQ(::chmod(path("secret").c_str(), 0), 0);
  const std::string said = as_nobody([&]() -> Status {
    auto text = read_file(path("secret"));
    if (!text.ok()) return text.errors();
    return ok_status();
  });
  EXPECT_EQ(said, path("secret") + ": cannot open: Permission denied\n");
}

TEST_F(File, WritesAndReplaces) {
  ASSERT_TRUE(write_file_atomically(path("f"), "one").ok());
  EXPECT_EQ(get(path("f")), "one");
  ASSERT_TRUE(write_file_atomically(path("f"), "").ok());
  EXPECT_EQ(get(path("f")), "");
  EXPECT_EQ(entries(), 1u);  // nothing is left aside
}

TEST_F(File, DoesNotWriteIntoAMissingOrWrongPlace) {
  const Status missing = write_file_atomically(path("no/such/f"), "x");
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(to_text(missing.errors()), HasSubstr(path("no/such/f") + ": cannot write: open: No such file"));
  const Status directory = write_file_atomically(dir_.string(), "x");
  ASSERT_FALSE(directory.ok());
  EXPECT_THAT(to_text(directory.errors()), HasSubstr("is a directory"));
  EXPECT_EQ(entries(), 0u);
}

TEST_F(File, AnUnwritableDirectoryKeepsTheOldFileAndGetsNoNewOne) {
  put(path("old"), "kept");
  ::chmod(path("old").c_str(), 0666);  // writable itself; the folder is not
  ::chmod(dir_.c_str(), 0555);
  const auto write = [&](const char* name) { return [this, name] { return write_file_atomically(path(name), "x"); }; };
  EXPECT_THAT(as_nobody(write("old")), HasSubstr("cannot write: open: Permission denied"));
  EXPECT_THAT(as_nobody(write("new")), HasSubstr("cannot write: open: Permission denied"));
  ::chmod(dir_.c_str(), 0777);
  EXPECT_EQ(get(path("old")), "kept");
  EXPECT_EQ(entries(), 1u);
}

// A full disk, made with a limit on the size of files: the write fails half way.
TEST_F(File, AWriteThatFailsHalfWayKeepsTheOldFile) {
  put(path("f"), "kept");
  ::chmod(path("f").c_str(), 0666);
  const std::string said = as_nobody([&]() -> Status {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small = {4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &small);
    return write_file_atomically(path("f"), std::string(100'000, 'x'));
  });
  EXPECT_THAT(said, HasSubstr("cannot write: write: File too large"));
  EXPECT_EQ(get(path("f")), "kept");
  EXPECT_EQ(entries(), 1u);
}

// Without root's rights, so that a fault here cannot replace the device.
TEST_F(File, WritesThroughToADevice) {
  EXPECT_EQ(as_nobody([] { return write_file_atomically("/dev/null", "x"); }), "ok");
  EXPECT_THAT(as_nobody([] { return write_file_atomically("/dev/full", "x"); }), HasSubstr("cannot write: write"));
}

}  // namespace
}  // namespace wt
