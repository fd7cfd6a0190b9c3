#include "import/launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/base/text.hpp"

namespace wt::import {

namespace {

struct Found {
  const ShellWord* word = nullptr;
  std::string flag, value;
  std::vector<std::string> open;
};

std::string dashes(std::string text) {
  if (!text.starts_with("-")) return text;
  std::replace(text.begin() + 1, text.end(), '_', '-');
  return text;
}

/// The value of the first of `names` between `begin` and `end`: "--x=1" or "--x 1".
std::optional<Found> option(const std::vector<ShellWord>& w, size_t begin, size_t end,
                            std::initializer_list<std::string_view> names) {
  for (size_t i = begin; i < end; ++i) {
    const size_t equals = w[i].text.find('=');
    const std::string flag = dashes(w[i].text.substr(0, equals));
    if (std::find(names.begin(), names.end(), flag) == names.end()) continue;
    if (equals != std::string::npos)
      return Found{&w[i], w[i].text.substr(0, equals), w[i].text.substr(equals + 1), w[i].open};
    if (i + 1 < end) return Found{&w[i], w[i].text, w[i + 1].text, w[i + 1].open};
  }
  return std::nullopt;
}

void take_count(const std::optional<Found>& f, std::string_view to, const std::string& file, Draft& d, bool& said) {
  if (!f) return;
  said = true;
  const Origin from{fmt::format("{}:{}", file, f->word->line), f->flag};
  if (!f->open.empty()) {
    const std::string name = f->open[0].substr(0, f->open[0].find(' '));
    const bool nodes = to == "run.nodes";
    if (d.options().gpus > 0 || (nodes && d.options().nodes > 0)) return;
    d.missing(
        std::string(nodes                 ? "number of nodes"
                    : to == "run.devices" ? "ranks a node"
                                          : "number of ranks"),
        fmt::format("{} {} is not known: {}{}", f->flag, f->value,
                    name[0] == '$' ? "" : fmt::format("--var {}=N, or ", name), nodes ? "--nodes N" : "--gpus N"));
    return;
  }
  std::string value = f->value;
  if (const size_t colon = value.find(':'); colon != value.npos) {  // elastic: 1:4
    d.note(fmt::format("{}: {} {}: elastic, planned at the most", from.where, f->flag, value));
    value = value.substr(colon + 1);
  }
  if (to == "run.devices" && (value == "gpu" || value == "auto" || value == "cpu")) {
    d.note(fmt::format("{}: {} {}: as many as the node has", from.where, f->flag, value));
    return;
  }
  const auto n = parse_int(value);
  if (!n || *n < 1)
    d.error(from, fmt::format("'{}' is not a number of {}", value, to == "run.nodes" ? "nodes" : "ranks"), "");
  else if (!(d.options().gpus > 0) && !(to == "run.nodes" && d.options().nodes > 0))
    d.take(from, f->value, to, *n);
}

bool ends_with_word(std::string_view path, std::string_view word) {
  return path == word ||
         (path.size() > word.size() && path.ends_with(word) && path[path.size() - word.size() - 1] == '/');
}

bool is_python(std::string_view text) {
  const size_t slash = text.rfind('/');
  const std::string_view base = slash == text.npos ? text : text.substr(slash + 1);
  return base.starts_with("python");
}

/// Index of the launcher word, and its name.
std::pair<size_t, std::string> find_launcher(const std::vector<ShellWord>& w) {
  for (size_t i = 0; i < w.size(); ++i) {
    const std::string& t = w[i].text;
    for (std::string_view name : {"torchrun", "deepspeed", "horovodrun", "xtorchrun"})
      if (ends_with_word(t, name)) return {i, std::string(name)};
    if (ends_with_word(t, "colossalai") && i + 1 < w.size() && w[i + 1].text == "run") return {i + 1, "colossalai run"};
    if (ends_with_word(t, "accelerate") && i + 1 < w.size() && w[i + 1].text == "launch")
      return {i + 1, "accelerate launch"};
    if (t == "-m" && i + 1 < w.size() &&
        (w[i + 1].text == "torch.distributed.run" || w[i + 1].text == "torch.distributed.launch" ||
         w[i + 1].text == "accelerate.commands.launch"))
      return {i + 1, w[i + 1].text};
    if (t.starts_with("--job.config")) break;
  }
  for (size_t i = 0; i < w.size() && i < 4; ++i)
    for (std::string_view name : {"srun", "mpirun", "mpiexec"})
      if (ends_with_word(w[i].text, name)) return {i, std::string(name)};
  return {w.size(), ""};
}

/// The training program: a .py file, or what "-m" names.
size_t find_program(const std::vector<ShellWord>& w, size_t begin) {
  for (size_t i = begin; i < w.size(); ++i) {
    const std::string& t = w[i].text;
    if (t.ends_with(".py") && !t.starts_with("-")) return i;
    if (t == "-m" && i + 1 < w.size() && !w[i + 1].text.starts_with("torch.distributed")) return i + 1;
    if (t == "--module" && i + 1 < w.size()) return i + 1;
  }
  return w.size();
}

}  // namespace

Launch read_launch(const ShellCommand& c, const std::string& file, Draft& d) {
  Launch out;
  const auto& w = c.words;
  const auto [at, name] = find_launcher(w);
  const bool python = !w.empty() && is_python(w[0].text);
  const size_t program = find_program(w, at < w.size() ? at + 1 : 0);
  out.program = program < w.size() ? w[program].text : "";
  out.arguments = std::min(program + 1, w.size());
  if (name.empty()) {
    out.found = python && program < w.size();
    return out;
  }
  out.found = true;
  out.launcher = name;
  const size_t end = std::min(program, w.size());
  bool said = false;
  if (name == "srun") {
    take_count(option(w, 0, end, {"--nodes", "-N"}), "run.nodes", file, d, said);
    take_count(option(w, 0, end, {"--ntasks-per-node", "--gpus-per-node"}), "run.devices", file, d, said);
  } else if (name == "mpirun" || name == "mpiexec" || name == "horovodrun") {
    take_count(option(w, 0, end, {"-np", "-n", "--np", "--num-proc"}), "run.world", file, d, said);
  } else if (name == "deepspeed") {
    take_count(option(w, at, end, {"--num-nodes"}), "run.nodes", file, d, said);
    take_count(option(w, at, end, {"--num-gpus", "--num-accelerators"}), "run.devices", file, d, said);
    if (const auto hosts = option(w, at, end, {"--hostfile", "-H"}))
      d.note(
          fmt::format("{}:{}: --hostfile {}: give that file too, for the number of GPUs", file, c.line, hosts->value));
  } else if (name == "colossalai run") {
    take_count(option(w, at, end, {"--nproc-per-node"}), "run.devices", file, d, said);
    if (const auto hosts = option(w, at, end, {"--host", "-H"})) {
      const auto commas = std::count(hosts->value.begin(), hosts->value.end(), ',');
      d.take({fmt::format("{}:{}", file, hosts->word->line), hosts->flag}, hosts->value, "run.nodes", commas + 1);
    } else if (const auto list = option(w, at, end, {"--hostfile"})) {
      d.note(
          fmt::format("{}:{}: --hostfile {}: give that file too, for the number of nodes", file, c.line, list->value));
    } else {
      d.before_world([&d] {
        if (!d.has("run.world") && d.options().nodes == 0)
          d.fall_back("run.nodes", "1", "neither --host nor --hostfile");
      });
    }
  } else if (name.find("accelerate") != std::string::npos) {
    take_count(option(w, at, end, {"--num-machines"}), "run.nodes", file, d, said);
    take_count(option(w, at, end, {"--num-processes"}), "run.world", file, d, said);
    if (const auto config = option(w, at, end, {"--config-file"}))
      d.note(fmt::format("{}:{}: --config_file {}: give that file too", file, c.line, config->value));
  } else {
    take_count(option(w, at, end, {"--nnodes"}), "run.nodes", file, d, said);
    const auto per = option(w, at, end, {"--nproc-per-node"});
    take_count(per, "run.devices", file, d, said);
    if (!option(w, at, end, {"--nnodes"}) && !option(w, 0, at, {"-N", "--nodes"}))
      d.before_world([&d] {
        if (!d.has("run.world") && d.options().nodes == 0) d.fall_back("run.nodes", "1", "--nnodes: 1");
      });
  }
  out.sets_world = said;
  return out;
}

void read_directives(const ShellScript& script, const std::string& file, Draft& d) {
  bool said = false;
  const auto& w = script.directives;
  take_count(option(w, 0, w.size(), {"--nodes", "-N"}), "run.nodes", file, d, said);
  auto per = option(w, 0, w.size(), {"--gpus-per-node", "--gres", "--gpus-per-task"});
  if (!per) return;
  // gpu:8, gpu:h100:8, h100:8
  if (const size_t colon = per->value.rfind(':'); colon != per->value.npos) per->value = per->value.substr(colon + 1);
  if (parse_int(per->value)) take_count(per, "run.devices", file, d, said);
}

bool is_hostfile(std::string_view text) {
  bool any = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (const size_t hash = line.find('#'); hash != line.npos) line = line.substr(0, hash);
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t blank = line.find_first_of(" \t");
    if (blank == line.npos) {
      if (line.find(':') == line.npos) return false;
      if (!parse_int(line.substr(line.rfind(':') + 1))) return false;
    } else if (line.find("slots=") == line.npos && line.find("max_slots=") == line.npos) {
      return false;
    }
    any = true;
  }
  return any;
}

bool is_host_list(std::string_view text) {
  size_t names = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool name = std::all_of(line.begin(), line.end(), [](unsigned char c) {
      return std::isalnum(c) || c == '.' || c == '-' || c == '_' || c == '\r';
    });
    if (!name) return false;
    if (!line.empty() && line != "\r") ++names;
  }
  return names > 0;
}

}  // namespace wt::import
