#include "sim/price/priced_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <variant>

#include "core/base/check.hpp"
#include "sim/price_seconds.hpp"

namespace wt::sim {
namespace {

using plan::Stream;

// The waits of an instance while slots are not yet given: a stream tail, or kInstance + the instance waited for.
constexpr uint32_t kInstance = plan::kStreams;
constexpr uint32_t kNever = UINT32_MAX;
constexpr uint64_t kOften = 4;  // invocations in a step from which finding the maps of a block pays

class Flattener {
 public:
  Flattener(const plan::Plan& plan, const Pricing& pricing, const Fold& fold, PricedPlan& out)
      : plan_(plan),
        pricing_(pricing),
        fold_(fold),
        out_(out),
        gap_(pricing.device_gap().count_ps()),
        kernel_issue_(pricing.kernel_issue().count_ps()),
        transfer_issue_(pricing.transfer_issue().count_ps()),
        message_channels_(pricing.message_channels()) {}

  /// `unit`: any unit of the class the block is priced for.
  FlatBlock flatten(BlockId id, uint32_t unit) {
    const plan::Block& block = plan_.block(id);
    FlatBlock flat;
    flat.block = id;
    price_ops(block, unit);
    find_waits(block);
    give_slots(flat);
    mark_exposed(flat);
    flat.instances = static_cast<uint32_t>(stream_.size());
    double seconds = 0;
    for (const FlatOp& op : flat.ops) seconds += 1e-12 * static_cast<double>(op.duration + op.issue);
    seconds_of.push_back(seconds);
    WT_CHECK(flat.instances < 1u << 24, "block '{}' has {} op instances", block.name, flat.instances);
    return flat;
  }

  Diagnostics errors;
  std::vector<double> seconds_of;  // [flattened block] its ops and their issue, one after the other

 private:
  void price_ops(const plan::Block& block, uint32_t unit) {
    priced_.assign(block.ops.size(), FlatOp());
    bool recomputing = false;
    for (size_t i = 0; i < block.ops.size(); ++i) {
      const plan::Op& op = block.ops[i];
      FlatOp& f = priced_[i];
      f.stream = static_cast<uint8_t>(op.stream);
      int64_t issue = transfer_issue_;
      duration_ = 0;
      const auto* compute = std::get_if<plan::Compute>(&op.body);
      if (compute && op.stream == Stream::host) {  // the host works itself: nothing is launched
        duration_ = pricing_.host_compute(*compute).count_ps();
        issue = 0;
      } else if (compute) {
        f.kind = op.stream == Stream::compute ? OpKind::compute : OpKind::plain;
        f.aux = row_of(*compute);
        duration_ = kernel_time_[f.aux] + gap_ * compute->launches;
        issue = kernel_issue_ * compute->launches + pricing_.operator_issue(op.phase).count_ps();
        const bool recomputes = op.phase == plan::Phase::recompute;
        if (recomputes && !recomputing) issue += pricing_.checkpoint_issue().count_ps();
        recomputing = recomputes;
      } else if (const auto* collective = std::get_if<plan::Collective>(&op.body)) {
        price_collective(block, op, *collective, unit, f);
      } else if (const auto* send = std::get_if<plan::Send>(&op.body)) {
        f.kind = OpKind::send;
        f.aux = MessageAux::make(size_index(send->bytes), binding_of(block, op.reads), send->to, false);
        f.channels = class_of(message_channels_);
      } else if (const auto* receive = std::get_if<plan::Receive>(&op.body)) {
        f.kind = OpKind::receive;
        f.aux = MessageAux::make(size_index(receive->bytes), binding_of(block, op.writes), receive->from, true);
        f.channels = class_of(message_channels_);
      } else if (const auto* copy = std::get_if<plan::Copy>(&op.body)) {
        duration_ = pricing_.copy(*copy).count_ps();
      } else {
        f.kind = std::holds_alternative<plan::HostWait>(op.body) ? OpKind::host_wait : OpKind::plain;
        issue = 0;
      }
      // The host issues the next op only when this one is over: its issue shows on the device every time.
      if (pricing_.launch_blocks() && !std::holds_alternative<plan::Join>(op.body)) duration_ += issue;
      if (duration_ < 0 || duration_ >= kLongestOp || issue < 0 || issue >= kLongestIssue)
        errors.push_back(
            {fmt::format("block '{}', op '{}'", block.name, op.name),
             fmt::format("would take {} after {} of issue", to_text(Time::ps(duration_)), to_text(Time::ps(issue))),
             fmt::format(
                 "one op may take {} after {} of issue: are the sizes and the rates of the cluster what was meant?",
                 to_text(Time::ps(kLongestOp)), to_text(Time::ps(kLongestIssue)))});
      f.duration = duration_;
      f.issue = issue;
    }
  }

  void price_collective(const plan::Block& block, const plan::Op& op, const plan::Collective& collective, uint32_t unit,
                        FlatOp& f) {
    const UnitGroup& group = fold_.groups[collective.group.v];
    if (group.base[unit] == UnitGroup::kNone) {
      errors.push_back({fmt::format("rank {}, block '{}', op '{}'", fold_.rank_of[unit], block.name, op.name),
                        fmt::format("the rank is not in group '{}'", plan_.group(collective.group).name), ""});
      return;
    }
    const CollectivePrice price = pricing_.collective(collective, fold_.shapes[fold_.shape(collective.group.v, unit)]);
    duration_ = price.time.count_ps();
    f.kind = group.size == 1 ? OpKind::local_collective : OpKind::collective;
    if (group.size > 1) {
      size_t c = 0;
      while (c < out_.comms.size() && (out_.comms[c].group != collective.group || out_.comms[c].stream != op.stream))
        ++c;
      if (c == out_.comms.size()) out_.comms.push_back({collective.group, op.stream});
      f.aux = static_cast<uint32_t>(c);
    }
    const bool beside = op.stream == Stream::tensor || op.stream == Stream::data || op.stream == Stream::replica ||
                        op.stream == Stream::expert || op.stream == Stream::context;
    if (beside && duration_ > 0) f.channels = class_of(price.channels);
  }

  uint32_t class_of(int64_t channels) {
    if (channels == 0) return 0;
    auto it = std::find(out_.channels.begin(), out_.channels.end(), channels);
    if (it == out_.channels.end()) it = out_.channels.insert(it, channels);
    WT_CHECK(out_.channels.size() < 127);
    return static_cast<uint32_t>(it - out_.channels.begin()) + 1;
  }

  /// Blocks share most of their kernels: each is asked for once.
  uint32_t row_of(const plan::Compute& compute) {
    const auto [it, fresh] = rows_.try_emplace(&compute, static_cast<uint32_t>(out_.computes.size()));
    if (fresh) {
      out_.computes.push_back(&compute);
      kernel_time_.push_back(pricing_.compute(compute).count_ps());
    }
    return it->second;
  }

  uint32_t size_index(int64_t bytes) const {
    return static_cast<uint32_t>(std::lower_bound(fold_.message_bytes.begin(), fold_.message_bytes.end(), bytes) -
                                 fold_.message_bytes.begin());
  }
  static uint32_t binding_of(const plan::Block& block, plan::Range refs) {
    return refs.count ? block.refs[refs.begin].binding : 0;
  }

  /// Unrolls; for each instance at most one wait for each other stream, the latest op there; and at most one op that it
  /// is pipelined with.
  void find_waits(const plan::Block& block) {
    stream_.clear(), op_.clear(), waits_.clear(), first_wait_.assign(1, 0), last_use_.clear();
    pipelined_.clear(), first_use_.clear();
    any_pieces_ = std::any_of(block.waits.begin(), block.waits.end(),
                              [](const plan::Wait& w) { return w.kind == plan::Wait::Kind::piece; });
    std::vector<uint32_t> last_instance(block.ops.size(), kNever);
    std::array<uint32_t, plan::kStreams> last_on;
    last_on.fill(kNever);
    for (const plan::Segment& s : block.segments) {
      const auto start = static_cast<uint32_t>(stream_.size());
      for (uint32_t i = 0; i < s.iterations; ++i)
        for (uint32_t k = s.first_op; k < s.first_op + s.op_count; ++k) {
          const plan::Op& op = block.ops[k];
          const auto mine = static_cast<uint8_t>(op.stream);
          std::array<uint32_t, plan::kStreams> best;  // [stream] kNever, an instance, or kTail
          constexpr uint32_t kTail = kNever - 1;
          best.fill(kNever);
          const auto instance = static_cast<uint32_t>(stream_.size());
          Pipelined pipelined;
          for (uint32_t w = op.waits.begin; w < op.waits.begin + op.waits.count; ++w) {
            const plan::Wait& wait = block.waits[w];
            if (wait.kind == plan::Wait::Kind::tail) {
              best[wait.index] = kTail;
              continue;
            }
            uint32_t on = kNever;
            if (wait.index >= s.first_op && wait.index < s.first_op + s.op_count) {
              if (i >= wait.iterations_back)
                on = start + (i - wait.iterations_back) * s.op_count + (wait.index - s.first_op);
            } else {
              on = last_instance[wait.index];
            }
            if (on == kNever || on >= instance) continue;
            if (wait.kind == plan::Wait::Kind::piece && wait.pieces > 1 && pipelined.on == kNever &&
                stream_[on] != mine && can_cut(priced_[k].kind) && can_cut(priced_[op_[on]].kind)) {
              pipelined = {on, wait.pieces};
              continue;
            }
            const uint8_t theirs = stream_[on];
            if (best[theirs] == kNever || (best[theirs] != kTail && best[theirs] < on)) best[theirs] = on;
          }
          for (uint8_t other = 0; other < plan::kStreams; ++other) {
            if (other == mine || best[other] == kNever) continue;
            if (best[other] == kTail || best[other] == last_on[other]) {
              waits_.push_back(other);
            } else {
              waits_.push_back(kInstance + best[other]);
              last_use_[best[other]] = instance;
            }
          }
          stream_.push_back(mine);
          op_.push_back(k);
          last_use_.push_back(kNever);
          first_wait_.push_back(static_cast<uint32_t>(waits_.size()));
          pipelined_.push_back(pipelined);
          first_use_.push_back({});
          if (pipelined.on != kNever) {
            last_use_[pipelined.on] = instance;
            // One grain for each op: all that are pipelined with it wait for the coarsest first piece.
            Pipelined& use = first_use_[pipelined.on];
            use = {instance, use.on == kNever ? pipelined.pieces : std::min(use.pieces, pipelined.pieces)};
          }
          last_instance[k] = instance;
          last_on[mine] = instance;
        }
    }
  }

  static bool can_cut(OpKind kind) {
    return kind == OpKind::plain || kind == OpKind::compute || kind == OpKind::local_collective ||
           kind == OpKind::collective;
  }

  void give_slots(FlatBlock& flat) {
    std::vector<uint16_t> slot_of(stream_.size(), kDrop), first_slot_of(any_pieces_ ? stream_.size() : 0, kDrop), free;
    uint16_t slots = 0;
    auto take = [&] {
      if (free.empty()) return static_cast<uint16_t>(kSlots + slots++);
      const uint16_t s = free.back();
      free.pop_back();
      return s;
    };
    flat.ops.reserve(stream_.size());
    for (uint32_t i = 0; i < stream_.size(); ++i) {
      FlatOp f = priced_[op_[i]];
      f.instance = i & 0xffffff;
      std::vector<uint16_t>& inputs = inputs_;
      inputs.clear();
      for (uint32_t w = first_wait_[i]; w < first_wait_[i + 1]; ++w) {
        if (waits_[w] < kInstance) {
          inputs.push_back(static_cast<uint16_t>(waits_[w]));
          continue;
        }
        const uint32_t on = waits_[w] - kInstance;
        inputs.push_back(slot_of[on]);
        if (last_use_[on] == i) freed_.push_back(slot_of[on]);
      }
      Pieces pieces;
      if (const Pipelined& p = pipelined_[i]; p.on != kNever) {
        inputs.push_back(first_slot_of[p.on]);
        pieces.floor = slot_of[p.on];
        pieces.floor_pieces = static_cast<uint16_t>(p.pieces);
        if (last_use_[p.on] == i) freed_.push_back(slot_of[p.on]);
        if (first_use_[p.on].on == i) freed_.push_back(first_slot_of[p.on]);
        f.in_pieces = 1;
      }
      std::sort(freed_.begin(), freed_.end());
      freed_.erase(std::unique(freed_.begin(), freed_.end()), freed_.end());
      while (inputs.size() > 4) {
        FlatOp merge;
        merge.kind = OpKind::merge;
        merge.stream = f.stream;
        for (uint16_t& w : merge.waits) w = inputs.back(), inputs.pop_back();
        merge.out = static_cast<uint16_t>(kSlots + slots++);  // never given back: rare
        inputs.insert(inputs.begin(), merge.out);
        flat.ops.push_back(merge);
        if (any_pieces_) flat.pieces.push_back({});
      }
      std::copy(inputs.begin(), inputs.end(), f.waits.begin());
      if (!f.in_pieces) free.insert(free.end(), freed_.begin(), freed_.end());
      if (last_use_[i] != kNever) f.out = slot_of[i] = take();
      if (any_pieces_ && first_use_[i].on != kNever) {
        pieces.first_out = first_slot_of[i] = take();
        pieces.out_pieces = static_cast<uint16_t>(first_use_[i].pieces);
        f.in_pieces = 1;
      }
      // A floor is read after the outputs are named, so its slot may not be one of them.
      if (pipelined_[i].on != kNever) free.insert(free.end(), freed_.begin(), freed_.end());
      freed_.clear();
      if (any_pieces_) flat.pieces.push_back(pieces);
      WT_CHECK(slots < 60000);
      flat.ops.push_back(f);
    }
    out_.row = std::max<uint32_t>(out_.row, kSlots + slots);
  }

  /// A collective needs no care if whatever computes after it waits for it: follow what is certainly over later.
  void mark_exposed(FlatBlock& flat) {
    std::vector<FlatOp>& ops = flat.ops;
    std::vector<uint8_t>& after = after_;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (!ops[i].channels) continue;
      after.assign(out_.row, 0);
      after[ops[i].stream] = 1;
      after[ops[i].out] = 1;
      after[kDrop] = 0;
      bool hidden = false, decided = false;
      for (size_t j = i + 1; j < ops.size() && !decided; ++j) {
        const FlatOp& f = ops[j];
        const bool late = after[f.stream] | after[kHost] | after[f.waits[0]] | after[f.waits[1]] | after[f.waits[2]] |
                          after[f.waits[3]];
        if (f.kind == OpKind::compute) hidden = late, decided = true;
        const bool ends_late = late || (f.in_pieces && after[flat.pieces[j].floor]);
        after[f.stream] = ends_late;
        after[f.out] = ends_late;
        if (f.in_pieces) after[flat.pieces[j].first_out] = late;
        after[kDrop] = 0;
        if (f.kind == OpKind::host_wait && late) after[kHost] = 1;
      }
      if (!decided) hidden = after[static_cast<size_t>(Stream::compute)] | after[kHost];
      if (hidden) ops[i].channels = 0;
    }
  }

  const plan::Plan& plan_;
  const Pricing& pricing_;
  const Fold& fold_;
  PricedPlan& out_;
  int64_t gap_, kernel_issue_, transfer_issue_, message_channels_;
  int64_t duration_ = 0;  // ps, of the op at hand: FlatOp has no room for one out of range

  struct HashCompute {
    size_t operator()(const plan::Compute* c) const {
      uint64_t h = static_cast<uint64_t>(c->kernel);
      for (int64_t d : c->dims) h = (h ^ static_cast<uint64_t>(d)) * 0x9e3779b97f4a7c15u;
      return static_cast<size_t>(h ^ h >> 32);
    }
  };
  struct SameCompute {
    bool operator()(const plan::Compute* a, const plan::Compute* b) const { return *a == *b; }
  };
  std::unordered_map<const plan::Compute*, uint32_t, HashCompute, SameCompute> rows_;
  std::vector<int64_t> kernel_time_;  // [row]

  struct Pipelined {
    uint32_t on = kNever, pieces = 1;
  };
  std::vector<FlatOp> priced_;                    // [op of the block]
  std::vector<Pipelined> pipelined_, first_use_;  // [instance] the op it follows; the last that follows it
  bool any_pieces_ = false;
  std::vector<uint16_t> freed_;
  std::vector<uint8_t> stream_;                       // [instance]
  std::vector<uint32_t> op_, first_wait_, last_use_;  // [instance]
  std::vector<uint32_t> waits_;
  std::vector<uint16_t> inputs_;
  std::vector<uint8_t> after_;
};

}  // namespace

Result<PricedPlan> price_plan(const plan::Plan& plan, const Pricing& pricing, const Fold& fold, bool summaries) {
  PricedPlan out;
  Flattener flattener(plan, pricing, fold, out);

  // A block is priced once for each combination of shapes of the groups that it uses.
  std::vector<std::vector<uint32_t>> block_groups(plan.blocks.size());
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    for (const plan::Op& op : plan.blocks[b].ops)
      if (const auto* c = std::get_if<plan::Collective>(&op.body)) block_groups[b].push_back(c->group.v);
    std::sort(block_groups[b].begin(), block_groups[b].end());
    block_groups[b].erase(std::unique(block_groups[b].begin(), block_groups[b].end()), block_groups[b].end());
  }
  std::vector<uint32_t> used_groups;
  for (uint32_t g = 0; g < fold.groups.size(); ++g)
    if (fold.groups[g].size) used_groups.push_back(g);

  std::map<std::vector<uint32_t>, uint32_t> class_index, block_index;
  out.class_of.resize(fold.units());
  for (uint32_t u = 0; u < fold.units(); ++u) {
    const ProgramId program = program_of(plan, RankId{fold.rank_of[u]});
    std::vector<uint32_t> key{program.v};
    if (!fold.shapes_uniform)
      for (uint32_t g : used_groups) key.push_back(fold.shape(g, u));
    const auto [it, fresh] = class_index.try_emplace(key, static_cast<uint32_t>(out.classes.size()));
    out.class_of[u] = it->second;
    if (!fresh) continue;
    UnitClass cls;
    cls.program = program;
    double seconds = 0;
    std::vector<uint32_t> flat_of(plan.blocks.size(), kNever);
    for (const plan::Invocation& invocation : plan.programs[program.v].steps.at(0).order) {
      uint32_t& flat = flat_of[invocation.block.v];
      if (flat == kNever) {
        std::vector<uint32_t> block_key{invocation.block.v};
        if (!fold.shapes_uniform)
          for (uint32_t g : block_groups[invocation.block.v]) block_key.push_back(fold.shape(g, u));
        const auto [at, missing] = block_index.try_emplace(block_key, static_cast<uint32_t>(out.blocks.size()));
        flat = at->second;
        if (missing) out.blocks.push_back(flattener.flatten(invocation.block, u));
      }
      cls.order.push_back({flat, {invocation.binding[0].chunk, invocation.binding[1].chunk}});
      cls.instances += out.blocks[flat].instances;
      seconds += flattener.seconds_of[flat];
    }
    if (seconds > kLongestSeconds)
      flattener.errors.push_back(
          {fmt::format("rank {}", fold.rank_of[u]), fmt::format("the ops of its step would take {:.3g} s", seconds),
           fmt::format("at most {:g} s: are the sizes and the rates of the cluster what was meant?", kLongestSeconds)});
    out.classes.push_back(std::move(cls));
  }
  if (Diagnostics& errors = flattener.errors; !errors.empty()) {
    constexpr size_t kTold = 5;  // one slow link makes hundreds of slow ops
    if (errors.size() > kTold) {
      const size_t more = errors.size() - kTold;
      errors.resize(kTold);
      errors.push_back({"", fmt::format("and {} more ops", more), ""});
    }
    return std::move(errors);
  }
  if (summaries) {
    std::vector<uint64_t> invocations(out.blocks.size(), 0), invocations_of_class(out.classes.size(), 0);
    for (uint32_t cls : out.class_of) ++invocations_of_class[cls];
    for (size_t c = 0; c < out.classes.size(); ++c)
      for (const OrderEntry& e : out.classes[c].order) invocations[e.block] += invocations_of_class[c];
    for (size_t b = 0; b < out.blocks.size(); ++b)
      if (invocations[b] >= kOften) {
        out.blocks[b].summaries = summarise(out.blocks[b].ops, out.blocks[b].pieces, out.row);
        for (Summary& s : out.blocks[b].summaries) s.id = out.summaries++;
      }
  }
  return out;
}

}  // namespace wt::sim
