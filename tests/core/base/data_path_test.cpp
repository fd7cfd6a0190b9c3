// The roots of built-in data: the environment comes first and is read on every call.
#include "core/base/data_path.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace wt {
namespace {

namespace fs = std::filesystem;

TEST(DataPath, FindsTheSourceTree) {
  ::unsetenv("WINDTUNNEL_DATA");
  ASSERT_FALSE(data_roots().empty());
  EXPECT_EQ(data_roots().back(), WT_SOURCE_DIR);
  EXPECT_EQ(data_directory(), WT_SOURCE_DIR "/data");
}

TEST(DataPath, TheEnvironmentComesFirst) {
  std::string folder = (fs::temp_directory_path() / "wt_data_XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ::setenv("WINDTUNNEL_DATA", folder.c_str(), 1);
  EXPECT_EQ(data_roots().front(), folder);
  EXPECT_EQ(data_directory(), WT_SOURCE_DIR "/data");  // the folder has no data/ yet
  fs::create_directory(folder + "/data");
  EXPECT_EQ(data_directory(), folder + "/data");
  ::setenv("WINDTUNNEL_DATA", "/no/such/folder", 1);
  EXPECT_EQ(data_roots().back(), WT_SOURCE_DIR);
  ::unsetenv("WINDTUNNEL_DATA");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace wt
