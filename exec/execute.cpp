#include "exec/execute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>

#include "core/plan/plan_io.hpp"
#include "core/plan/values.hpp"
#include "exec/convert.hpp"

namespace wt::exec {

using namespace plan;

namespace {

/// Clocks drift apart by tens of microseconds a minute: their offsets are measured again after so many steps.
constexpr int64_t kStepsPerClockReading = 50;

/// The buffer of tokens or labels, which come from the host; null for other copies.
const plan::Buffer* fed_by_host(const Plan& plan, const ScriptTask& t) {
  const Op& op = t.body();
  if (!std::holds_alternative<plan::Copy>(op.body) || op.writes.count == 0) return nullptr;
  const plan::Buffer& b = plan.buffer(t.block->refs[op.writes.begin].buffer);
  return b.role == Role::tokens || b.role == Role::labels ? &b : nullptr;
}

template <class T>
std::span<const T> pick(const std::vector<T>& list, Range range) {
  return {list.data() + range.begin, range.count};
}

bool is_update(const Compute& c) { return c.kernel == Kernel::adam || c.kernel == Kernel::sgd; }

/// Whether any op of the plan is such.
template <class F>
bool any_compute(const Plan& plan, F f) {
  for (const Block& b : plan.blocks)
    for (const Op& o : b.ops)
      if (const auto* c = std::get_if<Compute>(&o.body); c && f(*c)) return true;
  return false;
}

bool scales_loss(const Plan& plan, const ScriptOptions& options) {
  return !options.floats && any_compute(plan, [](const Compute& c) { return c.dtype == DType::f16; });
}

/// Every sequence of messages that the rank takes part in.
std::vector<Pair> pairs_of(const Script& script) {
  std::set<Pair> pairs;
  auto add = [&](const Tasks& tasks) {
    for (const ScriptTask& t : tasks.tasks) {
      const bool sends = std::holds_alternative<plan::Send>(t.body().body);
      if (sends || std::holds_alternative<plan::Receive>(t.body().body)) pairs.insert({t.peer, t.lane, sends});
    }
  };
  add(script.setup);
  for (const Tasks& step : script.steps) add(step);
  return {pairs.begin(), pairs.end()};
}

}  // namespace

Status executable(const Plan& plan, const ScriptOptions& options) {
  const bool clips = any_compute(plan, [](const Compute& c) { return is_update(c) && c.scalar > 0; });
  if (!scales_loss(plan, options) || clips) return ok_status();
  return Diagnostic{"training.gradient_clipping", "fp16 needs it: the gradient norm tells whether the loss scale fits",
                    "1.0 is usual"};
}

Result<Bytes> reserved_by_all(const Plan& plan, const ScriptOptions& options) {
  std::vector<int64_t> by_program(plan.programs.size(), -1);  // ranks of one program reserve alike
  Bytes all;
  for (uint32_t r = 0; r < plan.mesh.ranks(); ++r) {
    int64_t& bytes = by_program[program_of(plan, {r}).v];
    if (bytes < 0) {
      auto script = Script::make(plan, {r}, options);
      if (!script) return script.errors();
      bytes = 0;
      for (const ArenaUse& a : script.value().arenas) bytes += a.bytes;
    }
    all.n += bytes;
  }
  return all;
}

Executor::Executor(const Plan& plan, Machine& machine, const ExecuteOptions& options)
    : plan_(plan),
      program_(plan.programs[program_of(plan, machine.communicator->rank()).v]),
      machine_(machine),
      options_(options),
      rank_(machine.communicator->rank()) {}

Result<std::unique_ptr<Executor>> Executor::create(const Plan& plan, Machine& machine, const ExecuteOptions& options) {
  const int64_t ranks = machine.communicator->size();
  if (ranks != plan.mesh.ranks())
    return Diagnostic{"run", fmt::format("the plan is for {} ranks, {} run", plan.mesh.ranks(), ranks),
                      "start as many ranks as the job's cluster has devices"};
  std::unique_ptr<Executor> e(new Executor(plan, machine, options));
  if (const Status s = e->agree(e->prepare(), "start"); !s) return s.errors();
  if (const Status s = machine.communicator->connect(e->script_.channels); !s) return s.errors();
  if (const Status s = machine.communicator->connect_pairs(pairs_of(e->script_)); !s) return s.errors();
  auto clock = machine.communicator->clock_offset();
  if (!clock) return clock.errors();
  e->clock_ = clock.value();
  return e;
}

/// What one rank can find wrong by itself, all of it.
Status Executor::prepare() {
  auto script = Script::make(plan_, rank_, options_.script);
  if (!script) return script.errors();
  script_ = std::move(script.value());
  Diagnostics faults;
  if (!options_.tokens) faults.push_back({fmt::format("rank {}", rank_.v), "no tokens to train on", ""});
  for (size_t s = 0; s < kSpaces; ++s) {
    if (script_.arenas[s].bytes == 0) continue;
    auto memory = machine_.device->allocate(static_cast<Space>(s), Bytes{script_.arenas[s].bytes});
    if (memory)
      arenas_[s] = memory.value();
    else
      faults.insert(faults.end(), memory.errors().begin(), memory.errors().end());
  }
  script_.bind(arenas_);

  if (const Status s = executable(plan_, options_.script); !s) faults = s.errors();
  scaled_ = scales_loss(plan_, options_.script);
  std::optional<BufferId> norm;
  std::set<const Op*> asked;
  auto ask = [&](const Tasks& tasks) {
    for (const ScriptTask& t : tasks.tasks) {
      const auto* c = std::get_if<Compute>(&t.body().body);
      if (!c || !asked.insert(&t.body()).second) continue;
      if (c->kernel == Kernel::square_sum) norm = t.block->refs[t.body().writes.begin].buffer;
      const Launch launch{c, t.body().name, pick(tasks.operands, t.reads), pick(tasks.operands, t.writes),
                          context_of(t)};
      if (const auto why = machine_.device->unsupported(launch))
        faults.push_back({fmt::format("rank {}, block '{}', op {} ({})", rank_.v, t.block->name, t.op, t.body().name),
                          *why, fmt::format("on device '{}'", machine_.device->kind())});
    }
  };
  ask(script_.setup);
  for (const Tasks& t : script_.steps) ask(t);
  const bool head =
      std::any_of(program_.chunks.begin(), program_.chunks.end(), [&](PartId p) { return plan_.parts[p.v].head; });
  for (const Persistent& p : script_.persistent) {
    if (head && plan_.buffer(p.buffer).role == Role::loss) loss_ = &p;
    if (norm && p.buffer == *norm) norm_ = &p;
  }
  return status_of(std::move(faults));
}

/// Fails everywhere with what failed anywhere.
Status Executor::agree(const Status& mine, const char* what) {
  auto all = machine_.communicator->gather(mine ? "" : to_text(mine.errors()));
  if (!all) return all.errors();
  Diagnostics faults;
  if (!mine) faults = mine.errors();
  for (size_t r = 0; mine && r < all.value().size(); ++r)
    if (!all.value()[r].empty()) {
      faults.push_back({fmt::format("rank {} cannot {}", r, what), all.value()[r], ""});
      break;
    }
  return status_of(std::move(faults));
}

Operand Executor::operand(const Persistent& p) const {
  return {arenas_[static_cast<size_t>(p.place.space)] + p.place.offset, p.dtype, p.elements,
          plan_.buffer(p.buffer).shape};
}

// ------------------------------------------------------------------------------------------------- issue

Status Executor::setup() {
  values_ = {};
  for (const Status& s : {issue(script_.setup, nullptr), machine_.device->synchronize()})
    if (!s) {
      machine_.communicator->stop(s.errors()[0]);
      return s;
    }
  stage(script_.steps[0], state_.step);
  if (const Status s = machine_.communicator->barrier(); !s) return s;
  zero_ps_ = now_ps() - clock_.offset_ps;
  // The latest of all ranks: nobody's first op begins before zero.
  const double mine[] = {static_cast<double>(zero_ps_ / 1000)};
  auto latest = machine_.communicator->reduce(mine, Reduction::max);
  if (!latest) return latest.errors();
  zero_ps_ = static_cast<int64_t>(latest.value()[0]) * 1000;
  return ok_status();
}

KernelContext Executor::context_of(const ScriptTask& t) const {
  KernelContext k;
  k.group_index = t.group_index;
  k.group_size = t.group_size;
  k.micro_batches = plan_.micro_batches;
  k.values = &values_;
  const Op& op = t.body();
  const auto& c = std::get<Compute>(op.body);
  const bool drops = c.kernel == Kernel::dropout_forward || (c.kernel == Kernel::residual_forward && c.scalar > 0);
  if (!drops || op.writes.count == 0) return k;
  // The same draw when the op is recomputed, under every schedule, and on all tensor ranks that hold the same rows.
  const int64_t first = t.chunk < 0 ? 0 : program_.first_layer[static_cast<size_t>(t.chunk)];
  const int64_t layer =
      t.layer < 0 ? -1 : first + t.layer + t.block->refs[op.writes.begin + op.writes.count - 1].layer_offset;
  uint64_t key = mix(plan_.seed ^ mix(op.name));
  key = mix(key ^ static_cast<uint64_t>(state_.step));
  key = mix(key ^ static_cast<uint64_t>(layer + 1));
  key = mix(key ^ static_cast<uint64_t>(sample_of(plan_, rank_, std::max(0, t.micro_batch), 0)));
  const int64_t parts = plan_.mesh.context_ranks();
  if (parts > 1) key = mix(key ^ static_cast<uint64_t>(1 + plan_.mesh.context_coordinate(rank_)) << 32);
  const auto tensor = plan_.mesh.find("tp");
  if (tensor && c.dims[0] != plan_.sequence / parts * plan_.micro_batch_size)
    key = mix(key ^ static_cast<uint64_t>(1 + plan_.mesh.coordinate(rank_, *tensor)));
  k.random_key = key;
  return k;
}

Status Executor::issue(const Tasks& list, std::vector<Interval>* host_times) {
  Device& device = *machine_.device;
  last_ = {};
  copies_ = 0;
  Staged& staged = staged_[static_cast<size_t>(state_.step % 2)];
  for (Ticket ticket = 0; ticket < list.tasks.size(); ++ticket) {
    const ScriptTask& t = list.tasks[ticket];
    const Op& op = t.body();
    if (std::holds_alternative<HostWait>(op.body)) {
      const int64_t begin = now_ps();
      if (const Status s = host_wait(list, ticket); !s) return s;
      if (host_times) host_times->push_back({begin, now_ps()});
      continue;
    }
    for (const Ticket on : pick(list.waits, t.waits)) device.wait(op.stream, on);
    const auto reads = pick(list.operands, t.reads), writes = pick(list.operands, t.writes);
    if (const auto* c = std::get_if<Compute>(&op.body)) {
      const bool skip = overflow_ && is_update(*c);
      device.launch({skip ? nullptr : c, op.name, reads, writes, context_of(t)}, op.stream, ticket);
    } else if (std::holds_alternative<plan::Copy>(op.body)) {
      const auto& copy = std::get<plan::Copy>(op.body);
      const bool fed = fed_by_host(plan_, t) != nullptr;
      const auto from = fed ? std::span<const Operand>(&staged.operands[copies_++], 1) : reads;
      device.copy({op.name, from, writes, copy.from, copy.to}, op.stream, ticket);
    } else if (std::holds_alternative<Join>(op.body)) {
      if (&list == &script_.setup && t.writes.count > 0)
        if (const Status s = load(list, t); !s) return s;
      device.launch({nullptr, op.name, {}, {}, {}}, op.stream, ticket);
    } else {
      Transfer x;
      x.op = op.name;
      x.collective = std::get_if<Collective>(&op.body);
      x.kind = x.collective                            ? Transfer::Kind::collective
               : std::holds_alternative<Send>(op.body) ? Transfer::Kind::send
                                                       : Transfer::Kind::receive;
      x.channel = t.channel;
      x.peer = t.peer;
      x.lane = t.lane;
      x.reads = reads;
      x.writes = writes;
      machine_.communicator->start(x, op.stream, ticket);
    }
    last_[static_cast<size_t>(op.stream)] = ticket;
  }
  device.submit();
  return ok_status();
}

Status Executor::host_wait(const Tasks& list, Ticket ticket) {
  const ScriptTask& t = list.tasks[ticket];
  for (const Ticket on : pick(list.waits, t.waits))
    if (const Status s = machine_.device->wait_host(on); !s) return s;
  if (const auto& before = last_[static_cast<size_t>(t.body().stream)])
    if (const Status s = machine_.device->wait_host(*before); !s) return s;
  if (scaled_ && norm_) {
    const auto squares = scalar(norm_->place, norm_->dtype);
    if (!squares) return squares.errors();
    overflow_ = overflow_ || !std::isfinite(squares.value());
  }
  return ok_status();
}

Result<double> Executor::scalar(const Place& place, DType dtype) {
  std::array<std::byte, 8> raw{};
  const Operand x{arenas_[static_cast<size_t>(place.space)] + place.offset, dtype, 1, {}};
  if (const Status s = machine_.device->read(x, raw.data()); !s) return s.errors();
  double value = 0;
  exec::load(raw.data(), dtype, {&value, 1});
  return value;
}

/// What a Join of the setup stands for: initial values in what it writes.
Status Executor::load(const Tasks& list, const ScriptTask& t) {
  for (const auto& before : last_)  // the storage may have been used before
    if (before)
      if (const Status s = machine_.device->wait_host(*before); !s) return s;
  const Op& op = t.body();
  for (uint32_t i = 0; i < op.writes.count; ++i) {
    const BufferRef& ref = t.block->refs[op.writes.begin + i];
    const Operand& to = list.operands[t.writes.begin + i];
    const int64_t layer = plan_.buffer(ref.buffer).per_layer ? t.layer + ref.layer_offset : -1;
    std::vector<double> values(static_cast<size_t>(to.elements));
    load_initial(plan_, rank_, t.chunk, ref.buffer, layer, values);
    std::vector<std::byte> raw(static_cast<size_t>(to.bytes()));
    store(values, to.dtype, raw.data());
    if (const Status s = machine_.device->write(raw.data(), to); !s) return s;
  }
  return ok_status();
}

/// Fills the rows of the step that comes next. Rows are sequence-major; labels are the tokens of the next position.
void Executor::stage(const Tasks& list, int64_t step) {
  Staged& staged = staged_[static_cast<size_t>(step % 2)];
  if (staged.tasks == &list && staged.step == step) return;
  staged.tasks = &list;
  staged.step = step;
  const int64_t parts = plan_.mesh.context_ranks(), part = plan_.mesh.context_coordinate(rank_);
  const int64_t length = plan_.sequence / parts;
  const auto batch = static_cast<size_t>(plan_.micro_batch_size);
  std::vector<int32_t> sample(static_cast<size_t>(plan_.sequence + plan::tokens_ahead(plan_)));
  size_t used = 0;
  for (const ScriptTask& t : list.tasks) {
    const plan::Buffer* buffer = fed_by_host(plan_, t);
    if (!buffer) continue;
    if (used == staged.rows.size()) {
      staged.rows.emplace_back();
      staged.operands.emplace_back();
    }
    std::vector<int32_t>& rows = staged.rows[used];
    rows.resize(static_cast<size_t>(buffer->elements()));
    const size_t sequence = rows.size() / batch;
    const size_t next = buffer->role == Role::labels ? 1 : 0;
    staged.operands[used] = {rows.data(), DType::i32, static_cast<int64_t>(rows.size()), {}};
    ++used;
    for (size_t b = 0; b < batch; ++b) {
      options_.tokens->sample(step, sample_of(plan_, rank_, t.micro_batch, static_cast<int64_t>(b)), sample);
      for (size_t i = 0; i < sequence; ++i) {
        const int64_t position = plan::sequence_position(static_cast<int64_t>(i), length, part, parts);
        rows[i * batch + b] = sample[static_cast<size_t>(position) + next];
      }
    }
  }
}

// -------------------------------------------------------------------------------------------------- step

Result<StepOutcome> Executor::step(size_t variant) {
  const Tasks& list = script_.steps[variant];
  values_.step = state_.step - state_.skipped;
  values_.learning_rate = options_.learning_rate.at(state_.step);
  values_.beta1 = options_.beta1;
  values_.beta2 = options_.beta2;
  values_.epsilon = options_.epsilon;
  values_.weight_decay = options_.weight_decay;
  values_.loss_scale = scaled_ ? state_.loss_scale.scale : 1;
  overflow_ = false;
  host_times_.clear();
  stage(list, state_.step);
  Status issued = issue(list, &host_times_);
  if (issued) stage(list, state_.step + 1);  // while the devices work
  const Status over = machine_.device->synchronize();
  const Status& bad = issued ? over : issued;
  if (!bad) {
    machine_.communicator->stop(bad.errors()[0]);
    return bad.errors();
  }
  return finish(list);
}

Result<StepOutcome> Executor::finish(const Tasks& list) {
  const int64_t zero = zero_ps_ + clock_.offset_ps;
  spans_.clear();
  int64_t end = zero;
  size_t host = 0;
  for (Ticket ticket = 0; ticket < list.tasks.size(); ++ticket) {
    const ScriptTask& t = list.tasks[ticket];
    Interval when;
    if (std::holds_alternative<HostWait>(t.body().body)) {
      when = host_times_[host++];
    } else {
      auto i = machine_.device->interval(ticket);
      if (!i) return i.errors();
      when = i.value();
    }
    end = std::max(end, when.end_ps);
    spans_.push_back({t.invocation, t.instance, when.begin_ps - zero, when.end_ps - zero});
  }

  struct Report {
    int64_t end = 0;
    double loss = 0, holders = 0, squares = 0;
  } mine;
  mine.end = end - clock_.offset_ps;
  if (loss_) {
    const auto loss = scalar(loss_->place, loss_->dtype);
    if (!loss) return loss.errors();
    mine.loss = loss.value();
    mine.holders = 1;
  }
  if (norm_) {
    const auto squares = scalar(norm_->place, norm_->dtype);
    if (!squares) return squares.errors();
    mine.squares = squares.value();
  }
  auto all = machine_.communicator->gather({reinterpret_cast<const char*>(&mine), sizeof mine});
  if (!all) return all.errors();
  // Tensor ranks hold copies of the loss, data-parallel ranks means over their part of the batch.
  Report sum;
  int64_t last = zero_ps_;
  for (const std::string& text : all.value()) {
    Report r;
    WT_CHECK(text.size() == sizeof r);
    std::memcpy(&r, text.data(), sizeof r);
    last = std::max(last, r.end);
    sum.loss += r.loss;
    sum.holders += r.holders;
  }
  StepOutcome out;
  out.step = state_.step;
  out.loss = sum.holders > 0 ? sum.loss / sum.holders : 0;
  out.learning_rate = values_.learning_rate;
  out.loss_scale = values_.loss_scale;
  out.gradient_norm = std::sqrt(mine.squares);
  out.skipped = overflow_;
  out.time = Time::ps(last - zero_ps_);
  zero_ps_ = last;
  if (scaled_) state_.loss_scale.after(overflow_);
  state_.skipped += overflow_;
  ++state_.step;
  if (state_.step % kStepsPerClockReading == 0) {
    auto clock = machine_.communicator->clock_offset();
    if (!clock) return clock.errors();
    clock_ = clock.value();
  }
  return out;
}

// --------------------------------------------------------------------------------------------------- run

Result<RunSummary> run_rank(const Plan& plan, Machine& machine, const RunOptions& options) {
  auto made = Executor::create(plan, machine, options.execute);
  if (!made) return made.errors();
  Executor& e = *made.value();
  if (const Status s = e.setup(); !s) return s.errors();
  auto call = [&](const std::function<Status(Executor&)>& hook) { return hook ? hook(e) : ok_status(); };
  if (const Status s = call(options.begin); !s) return s.errors();
  RunSummary summary;
  summary.arenas = e.script().arenas;
  std::vector<Time> measured;
  const RankId rank = machine.communicator->rank();
  const int64_t todo = std::max<int64_t>(0, options.warmup + options.steps - e.state().step);
  summary.warmups = std::min(options.warmup, std::max<int64_t>(0, todo - 1));
  for (int64_t i = 0; i < todo; ++i) {
    auto outcome = e.step();
    if (!outcome) return outcome.errors();
    const bool counts = i >= summary.warmups;
    summary.steps.push_back(outcome.value());
    if (counts) measured.push_back(outcome.value().time);
    if (counts && options.sink) options.sink->spans(rank.v, static_cast<uint32_t>(i - summary.warmups), e.spans());
    if (rank.v == 0 && options.on_step) options.on_step(outcome.value(), counts);
    if (const Status s = call(options.stepped); !s) return s.errors();
  }
  if (const Status s = call(options.end); !s) return s.errors();
  if (options.inspect) options.inspect(e);
  std::sort(measured.begin(), measured.end());
  if (const size_t n = measured.size(); n > 0)
    summary.median = Time::ps((measured[(n - 1) / 2].count_ps() + measured[n / 2].count_ps()) / 2);
  const double mine[] = {static_cast<double>(e.clock_uncertainty().count_ps())};
  auto uncertainty = machine.communicator->reduce(mine, Reduction::max);
  if (!uncertainty) return uncertainty.errors();
  summary.clock_uncertainty = Time::ps(static_cast<int64_t>(uncertainty.value()[0]));
  return summary;
}

Result<RunSummary> run_ranks(const Plan& plan, std::vector<Machine>& machines, const RunOptions& options) {
  std::vector<std::optional<Result<RunSummary>>> results(machines.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < machines.size(); ++r)
    threads.emplace_back([&, r] { results[r].emplace(run_rank(plan, machines[r], options)); });
  for (std::thread& t : threads) t.join();
  for (auto& result : results)
    if (!result->ok()) return result->errors();
  return std::move(*results[0]);
}

trace::Meta trace_meta(const Plan& plan, const RunSummary& summary) {
  trace::Meta meta;
  meta.producer = trace::Producer::executed;
  meta.plan_digest = digest(plan);
  meta.seed = plan.seed;
  meta.clock_uncertainty = summary.clock_uncertainty;
  for (uint32_t r = 0; r < plan.mesh.ranks(); ++r) meta.ranks.push_back({r, 1});
  return meta;
}

}  // namespace wt::exec
