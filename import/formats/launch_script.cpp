// A shell script that starts a training: torchrun, deepspeed, accelerate, srun lines with Megatron's flags, or with those of
// another program. Here-documents that are DeepSpeed configurations are read too.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "core/base/text.hpp"
#include "import/deepspeed.hpp"
#include "import/format.hpp"
#include "import/keys.hpp"
#include "import/launch.hpp"
#include "import/megatron.hpp"
#include "import/script_args.hpp"
#include "import/syntax.hpp"

namespace wt::import {

namespace {

int recognise(const Foreign& f) {
  if (f.syntax != Foreign::Syntax::text) return 0;
  for (std::string_view end : {".sh", ".slurm", ".sbatch", ".bash"})
    if (f.base().ends_with(end)) return 6;
  if (f.text.starts_with("#!") && f.text.substr(0, f.text.find('\n')).find("sh") != std::string_view::npos) return 6;
  const std::string_view head = f.text.substr(0, size_t{1} << 16);
  for (std::string_view word : {"torchrun ", "deepspeed ", "accelerate launch", "colossalai run", "torch.distributed.",
                                "srun ", "--tensor-model-parallel-size"})
    if (head.find(word) != head.npos && !f.base().ends_with(".log") && !f.base().ends_with(".md")) return 3;
  return 0;
}

/// A configuration that the script writes for DeepSpeed.
void read_document(const HereDocument& doc, const Foreign& f, Draft& d) {
  if (doc.text.text.find("\"train_") == std::string::npos &&
      doc.text.text.find("\"zero_optimization\"") == std::string::npos)
    return;
  if (!doc.text.open.empty()) {
    for (const std::string& o : doc.text.open)
      d.error({fmt::format("{}:{}", f.name, doc.line), "DeepSpeed configuration"},
              fmt::format("needs {}, which is not known", o), fmt::format("--var {}=VALUE", o.substr(0, o.find(' '))));
    return;
  }
  bool changed = false;
  std::vector<tree::Duplicate> duplicates;
  auto parsed = tree::parse_json(
      std::string(static_cast<size_t>(std::max(doc.line - 1, 0)), '\n') + strict_json(doc.text.text, changed),
      std::make_shared<const tree::Source>(tree::Source{f.name, "", false}), duplicates);
  if (!parsed || !parsed.value().is_map()) {
    if (!parsed) d.errors().insert(d.errors().end(), parsed.errors().begin(), parsed.errors().end());
    return;
  }
  const auto kept = std::make_shared<tree::Node>(std::move(parsed.value()));
  d.later([kept] {});  // what resolves later points into it
  d.file(fmt::format("{}:{}", f.name, doc.line), "DeepSpeed JSON in a here-document", std::string(kDeepSpeedVersion));
  Keys keys(*kept, "", d);
  read_deepspeed(keys);
  keys.finish("DeepSpeed");
}

size_t megatron_words(const ShellCommand& c, size_t begin) {
  size_t n = 0;
  for (size_t i = begin; i < c.words.size(); ++i) {
    const std::string flag = c.words[i].text.substr(0, c.words[i].text.find('='));
    if (flag.starts_with("--") && megatron_flag(flag)) ++n;
  }
  return n;
}

/// The line that starts the training: the one with the most flags of Megatron, else the last launch.
const ShellCommand* training_command(const ShellScript& s, size_t& flags) {
  const ShellCommand* best = nullptr;
  flags = 0;
  for (const ShellCommand& c : s.commands) {
    if (c.words.empty() || c.words[0].text == "echo" || c.words[0].text == "printf" || c.words[0].text == "eval")
      continue;
    const size_t n = megatron_words(c, 0);
    bool launches = false;
    for (const ShellWord& w : c.words)
      for (std::string_view name : {"torchrun", "deepspeed", "accelerate", "colossalai", "torch.distributed.run",
                                    "torch.distributed.launch", "srun", "mpirun", "horovodrun"})
        launches = launches || w.text == name || w.text.ends_with(fmt::format("/{}", name));
    for (const ShellWord& w : c.words) launches = launches || w.text.ends_with(".py");
    if (!launches && n < 5) continue;
    if (!best || n >= flags) {
      best = &c;
      flags = n;
    }
  }
  return best;
}

/// A part of a script: no launch, but variables that hold flags (a model's configuration to be sourced).
bool read_fragment(const ShellScript& s, const Foreign& f, Draft& d) {
  MegatronArgs args(d);
  for (const auto& [name, values] : s.variables) {
    std::vector<ShellWord> words;
    for (const ShellWord& value : values) {
      for (size_t begin = 0; begin < value.text.size();) {
        const size_t end = std::min(value.text.find_first_of(" \n\t", begin), value.text.size());
        if (end > begin) words.push_back({value.text.substr(begin, end - begin), value.line, {}});
        begin = end + 1;
      }
    }
    size_t known = 0;
    for (const ShellWord& w : words)
      if (w.text.starts_with("--") && megatron_flag(w.text)) ++known;
    if (known >= 3) args.command_line(words, 0, f.name);
  }
  if (args.size() == 0) return false;
  d.note(fmt::format("{}: no line that starts a training: its variables that hold Megatron's flags were read", f.name));
  read_megatron(args);
  return true;
}

void read(const Foreign& f, Draft& d) {
  const ShellScript script = read_shell(f.text, d.options().vars);
  for (const HereDocument& doc : script.documents) read_document(doc, f, d);
  for (const std::string& file : script.sourced)
    d.note(fmt::format("{}: reads {}, which was not followed: --var gives what it sets", f.name, file));
  size_t flags = 0;
  const ShellCommand* command = training_command(script, flags);
  if (!command) {
    d.file(f.name, "shell script", std::string(kMegatronVersion));
    if (!read_fragment(script, f, d))
      d.error({f.name, ""}, "starts no training that could be read",
              "a line with torchrun, deepspeed, accelerate launch or srun, or flags of Megatron-LM");
    return;
  }
  const Launch launch = read_launch(*command, f.name, d);
  if (!launch.sets_world) read_directives(script, f.name, d);
  if (command->conditional)
    d.note(fmt::format("{}:{}: the training stands under a condition that is not known", f.name, command->line));
  constexpr size_t kEnough = 5;
  if (flags >= kEnough) {
    d.file(f.name, "launch script with Megatron arguments", std::string(kMegatronVersion));
    MegatronArgs args(d);
    args.command_line(command->words, launch.found && launch.arguments < command->words.size() ? launch.arguments : 0,
                      f.name);
    read_megatron(args);
    return;
  }
  read_script_arguments(*command, launch, f.name, d);
}

}  // namespace

extern const Format formats_launch_script;
const Format formats_launch_script = {
    "launch_script", "launch script",
    "shell or Slurm script, or one launch line, with the flags of Megatron or another program", recognise, read};

}  // namespace wt::import
