// Every file of tests/invalid against the whole of its expected message, kept beside it as <file>.expect.
// The first word of a name says what it is read as; "# set: key=value" lines of a job are overrides.
// WT_UPDATE=1 writes the messages anew: read the difference before keeping it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/base/file.hpp"
#include "core/spec/hf_config.hpp"
#include "core/spec/read.hpp"

namespace wt {
namespace {

namespace fs = std::filesystem;
const fs::path kFolder = fs::path(WT_SOURCE_DIR) / "tests/invalid";

std::vector<std::string> cases() {
  std::vector<std::string> out;
  for (const auto& e : fs::directory_iterator(kFolder))
    if (e.path().extension() != ".expect") out.push_back(e.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

template <class T>
std::string message(const Result<T>& r) {
  return r.ok() ? "no fault found\n" : to_text(r.errors());
}

std::string message_of(const std::string& name) {
  const std::string path = (kFolder / name).string();
  const std::string kind = name.substr(0, name.find('-'));
  if (kind == "model") return message(read_model(path));
  if (kind == "device") return message(read_device(path));
  if (kind == "cluster") return message(read_cluster(path));
  if (kind == "hf") return message(read_hf_config(path));
  std::vector<std::string> overrides;
  const std::string text = read_file(path).value();
  for (size_t at = 0; (at = text.find("# set: ", at)) != std::string::npos; ++at)
    overrides.push_back(text.substr(at + 7, text.find('\n', at) - at - 7));
  return message(read_job(path, overrides));
}

class Invalid : public testing::TestWithParam<std::string> {};

TEST_P(Invalid, SaysAllThatIsWrong) {
  std::string got = message_of(GetParam());
  const std::string folder = kFolder.string() + "/";
  for (size_t at; (at = got.find(folder)) != std::string::npos;) got.erase(at, folder.size());
  const std::string expect = (kFolder / (GetParam() + ".expect")).string();
  if (std::getenv("WT_UPDATE")) { ASSERT_TRUE(write_file_atomically(expect, got).ok()); }
  const Result<std::string> want = read_file(expect);
  ASSERT_TRUE(want.ok()) << "no " << expect;
  EXPECT_EQ(got, want.value());
  EXPECT_EQ(got.find("no fault found"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Files, Invalid, testing::ValuesIn(cases()), [](const auto& one) {
  std::string name = one.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

TEST(Invalid, DirectoryAndMissingFile) {
  const Result<ModelSpec> folder = read_model(WT_SOURCE_DIR "/models");
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(to_text(folder.errors()),
            WT_SOURCE_DIR "/models: is a directory (give the config.json or the .yaml in it)\n");
  const Result<JobSpec> missing = read_job(WT_SOURCE_DIR "/no-such-job.yaml");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(to_text(missing.errors()), WT_SOURCE_DIR "/no-such-job.yaml: cannot open: No such file or directory\n");
  EXPECT_FALSE(read_job(WT_SOURCE_DIR "/models").ok());
}

}  // namespace
}  // namespace wt
