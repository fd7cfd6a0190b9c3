// Hostfiles of DeepSpeed and MPI: one host a line, "slots=8" or "host:8": the number of ranks. Of Colossal-AI: names
// alone, the number of nodes.
#include <fmt/format.h>

#include <set>
#include <string>

#include "core/base/text.hpp"
#include "import/format.hpp"
#include "import/launch.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::text) return 0;
  if (!is_hostfile(f.text)) return f.base().find("host") != std::string_view::npos && is_host_list(f.text) ? 7 : 0;
  return f.base().find("host") != std::string_view::npos ? 7 : 4;
}

void read(const Foreign& f, Draft& d) {
  d.file(f.name, "hostfile", "");
  const bool is_list = !is_hostfile(f.text);
  int64_t hosts = 0, slots = 0, line_number = 0;
  std::set<int64_t> sizes;
  std::set<std::string, std::less<>> names;
  std::string_view text = f.text;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (const size_t hash = line.find('#'); hash != line.npos) line = line.substr(0, hash);
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == line.npos) continue;
    const Origin from{fmt::format("{}:{}", f.name, line_number), std::string(line.substr(begin, 60))};
    const size_t name_end = std::min(line.find_first_of(" \t:\r", begin), line.size());
    if (!names.insert(std::string(line.substr(begin, name_end - begin))).second) {
      d.error(from, "a host is there twice", "DeepSpeed refuses this; keep one");
      continue;
    }
    if (is_list) {
      ++hosts;
      continue;
    }
    const size_t equals = line.find("slots=", name_end);
    const size_t value = equals != line.npos ? equals + 6 : name_end + 1;
    const size_t stop = std::min(line.find_first_of(" \t\r", value), line.size());
    const auto n = value < line.size() ? parse_int(line.substr(value, stop - value)) : std::nullopt;
    if (!n || *n < 1 || *n > 1024) {
      d.error(from, "has no number of slots", "such as: node-0 slots=8");
      continue;
    }
    ++hosts;
    slots += *n;
    sizes.insert(*n);
  }
  const Origin whole{f.name, fmt::format("{} hosts", hosts)};
  if (hosts == 0) return d.error({f.name, ""}, "names no host", "");
  if (is_list) return d.take(whole, fmt::format("{} names", hosts), "run.nodes", hosts);
  d.take(whole, fmt::format("{} slots", slots), "run.world", slots);
  if (sizes.size() == 1)
    d.take(whole, fmt::format("{} slots each", *sizes.begin()), "run.devices", *sizes.begin());
  else
    d.note(fmt::format("{}: hosts of unlike size: planned as if their {} ranks filled equal nodes", f.name, slots));
}

}  // namespace

extern const Format formats_hostfile;
const Format formats_hostfile = {"hostfile", "hostfile", "of DeepSpeed or MPI: the number of ranks", recognise, read};

}  // namespace wt::import
