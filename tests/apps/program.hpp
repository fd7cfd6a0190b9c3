// Runs the shipped program as a user does: in the source tree, through a shell, with its output and exit code.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Outcome {
  int code = -1;
  std::string out, err;
};

inline std::string slurp(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

class Program : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("wt_program_" + std::to_string(::getpid()) + "_" +
                                           testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Outcome run(const std::string& words) const {
    const std::string command = "cd '" + std::string(WT_SOURCE_DIR) + "' && '" + std::string(WT_BINARY_DIR) +
                                "/windtunnel' " + words + " >'" + (folder_ / "out").string() + "' 2>'" +
                                (folder_ / "err").string() + "'";
    Outcome r;
    const int status = std::system(command.c_str());
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    r.out = slurp(folder_ / "out");
    r.err = slurp(folder_ / "err");
    return r;
  }
  std::string in_folder(const char* name) const { return "'" + (folder_ / name).string() + "'"; }
  fs::path folder_;
};

inline bool has(const std::string& text, const std::string& piece) { return text.find(piece) != std::string::npos; }
