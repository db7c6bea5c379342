#include "plan.h"

#include "operations.h"

namespace fedtiny {
namespace {

constexpr Index MIN_LANES = 8;                  // narrower kernels lack fused multiply-add
constexpr Index PARTIAL_GOAL = Index{1} << 20;  // floats of weight gradients summed in pieces
constexpr Index MAX_CHUNKS = 32;
constexpr double FULL_ENOUGH = 0.7;  // of a grouped convolution, to compute as if it were full
#if defined(__SANITIZE_ADDRESS__)
constexpr bool SANITIZED = true;
#else
constexpr bool SANITIZED = false;
#endif

// Hands out arrays one after the other; under a sanitizer with forbidden ground between them.
class Tally {
 public:
  explicit Tally(char* start) : start_(start) {}
  template <class T>
  T* take(Index count) {
    char* place = start_ + total_;
    total_ += ceil_div(sized(count, sizeof(T)), ALIGNMENT) * ALIGNMENT;
    if (SANITIZED) {
      gaps_.push_back(start_ + total_);
      total_ += ALIGNMENT;
    }
    return reinterpret_cast<T*>(place);
  }
  Index total() const { return total_; }
  std::vector<char*> gaps() const { return gaps_; }

 private:
  char* start_;
  Index total_ = 0;
  std::vector<char*> gaps_;
};

bool has_scale(const Node& node) { return node.is_norm() || node.is_image_norm(); }

Index parameter_count(const Node& node, Index kept) {
  if (!node.owns()) return 0;
  if (node.is_layer()) return kept + (node.bias != 0 ? node.whole_channels : 0);
  return has_scale(node) ? 2 * node.whole_channels : 0;
}

void place_parameters(Layout& layout, const Nodes& nodes, const Options& o, Tally& tally) {
  for (const Node& node : nodes)
    layout.parameters += parameter_count(node, layout.layers[node.place].kept);
  layout.values = tally.take<float>(layout.parameters);
  layout.gradients = tally.take<float>(layout.parameters);
  layout.first_moment = layout.second_moment = tally.take<float>(layout.parameters);
  if (o.optimizer == FEDTINY_ADAM) layout.second_moment = tally.take<float>(layout.parameters);
  if (o.proximal != 0) layout.start = tally.take<float>(layout.parameters);
  Index used = 0;
  const auto take = [&](Index count) {
    const Parameter parameter = {layout.values + used, layout.gradients + used};
    used += count;
    return parameter;
  };
  for (const Node& node : nodes) {
    Layer& layer = layout.layers[node.place];
    Norm& norm = layout.norms[node.place];
    if (!node.owns()) {
      layer = layout.layers[node.owner()];
      norm = layout.norms[node.owner()];
      continue;
    }
    if (node.is_layer()) layer.weight = take(layer.kept);
    if (node.is_layer() && node.bias != 0) layer.bias = take(node.whole_channels);
    if (has_scale(node)) norm.weight = take(node.whole_channels);
    if (has_scale(node)) norm.bias = take(node.whole_channels);
  }
}

// Whether a layer whose mask keeps so many weights holds all of them.
bool holds_all(const Node& node, const Options& o, Index masked) {
  return node.kind == FEDTINY_CONVOLUTION && node.groups > 1 && o.remove_dead == 0 &&
         FULL_ENOUGH * static_cast<double>(node.weights()) <= static_cast<double>(masked);
}

void place_lists(Layer& layer, const Node& node, const Options& o, Tally& tally) {
  layer.geometry = geometry_of(node, o);
  const auto take = [&](Index count, bool wide) {
    return Numbers(tally.take<char>(Numbers::bytes(count, wide)), wide);
  };
  if (layer.filled()) layer.mask = tally.take<unsigned char>(ceil_div(layer.kept, 8));
  const bool many = layer.kept > UINT16_MAX, wide = layer.geometry->wide();
  layer.row_begin = take(node.whole_channels + 1, many);
  layer.offsets = take(layer.kept, wide);
  layer.back_begin = take(layer.geometry->buckets() + 1, many);
  layer.back_offsets = take(layer.kept, wide);
  if (node.owns() && node.adds_gradient && o.top_count > 0)
    layer.whole_gradient = tally.take<float>(node.weights());
  if (node.kind != FEDTINY_CONVOLUTION) return;
  const Index pieces = sized(o.blocks(o.batch), layer.geometry->bands);
  const Index goal = PARTIAL_GOAL / std::max<Index>(1, layer.kept + node.whole_channels);
  layer.chunks = std::min({pieces, std::max<Index>(2, goal), MAX_CHUNKS});
}

void place_norm(Norm& norm, Index channels, Tally& tally) {
  const auto spread = [channels](auto* first, std::initializer_list<decltype(&first)> arrays) {
    for (auto** array : arrays) {
      *array = first;
      first += channels;
    }
  };
  spread(tally.take<float>(2 * channels), {&norm.running_mean, &norm.running_var});
  spread(tally.take<double>(4 * channels), {&norm.mean, &norm.var, &norm.sum, &norm.product});
  spread(tally.take<float>(6 * channels),
         {&norm.scale, &norm.shift, &norm.batch_mean, &norm.a, &norm.k1, &norm.k2});
}

// Floats that one thread needs for one node: planes as they are read and written, or its own.
Index scratch_floats(const Node& node, const Options& o, Index images) {
  const Index in = node.in.plane() * o.lanes, out = node.out.plane() * o.lanes;
  const auto own = operation_of(node).scratch;
  return own == nullptr ? 2 * (in + out) : std::max(2 * std::max(in, out), own(node, o, images));
}

Index sum_floats(const Node& node, const Options& o, Index images) {
  const Index bands = node.kind == FEDTINY_CONVOLUTION ? geometry_of(node, o).bands : 1;
  return sized(3, o.blocks(images), bands, std::max(node.in.channels, node.out.channels));
}

// What operations use one after the other: as much as the one that needs most.
void place_scratch(Layout& layout, const Nodes& nodes, const Options& o, Tally& tally) {
  Index scratch = 0, sums = 0, partials = 0, slab = 0, back = 0, buckets = 0;
  for (const Node& node : nodes) {
    const Layer& layer = layout.layers[node.place];
    for (const Index images : {o.batch, o.forward_batch}) {
      scratch = std::max(scratch, scratch_floats(node, o, images));
      sums = std::max(sums, sum_floats(node, o, images));
      if (node.kind == FEDTINY_LINEAR)  // what it reads and the gradients of what it returns
        partials =
            std::max(partials, sized(o.blocks(images), node.in.size() + node.out.size(), o.lanes));
    }
    if (node.is_image_norm())  // two sums of each channel of each block
      partials = std::max(partials, sized(2, o.blocks(o.batch), node.out.channels));
    partials = std::max(partials, layer.chunks * (layer.kept + node.whole_channels));
    if (!node.is_layer()) continue;
    slab = std::max(slab, sized(FILTER_GROUP, node.filter_size()));
    back = std::max(back, layer.kept);
    buckets = std::max(buckets, layer.geometry->buckets());
  }
  layout.back_weights = tally.take<float>(back);
  layout.back_next = tally.take<std::int32_t>(buckets);
  layout.sums = tally.take<float>(sums);
  layout.partials = tally.take<float>(partials);
  layout.scratch_each = rounded_up(scratch);
  layout.scratch = tally.take<float>(o.threads * layout.scratch_each);
  layout.heaps = tally.take<char>(sized(o.threads, o.top_count, 8));
  layout.slab_each = rounded_up(slab);
  layout.slabs = tally.take<float>(o.threads * layout.slab_each);
  layout.logits = tally.take<float>(nodes.back().out.channels * o.lanes);
}

}  // namespace

Geometry geometry_of(const Node& node, const Options& o) {
  return Geometry(node, o.lanes, o.blocks(o.batch));
}

Options checked_options(const fedtiny_options& given, bool only_planned) {
  Options o{};
  static_cast<fedtiny_options&>(o) = given;
  const auto flag = [](std::int32_t value) { return value == 0 || value == 1; };
  if (o.batch < 1 || o.batch > MAX_BATCH) refuse("a batch has 1 to 1048576 images");
  if (o.forward_batch < 1 || o.forward_batch > MAX_BATCH)
    refuse("a forward batch has 1 to 1048576 images");
  if (o.threads < 1 || o.threads > MAX_THREADS)
    refuse("the number of threads must be from 1 to " + std::to_string(MAX_THREADS));
  if (!flag(o.half) || !flag(o.recompute) || !flag(o.remove_dead) || !flag(o.input_gradient) ||
      !flag(o.proximal))
    refuse("an option that is on or off must be 1 or 0");
  if (o.optimizer != FEDTINY_SGD && o.optimizer != FEDTINY_ADAM) refuse("no such optimizer");
  if (o.top_count < 0) refuse("the number of largest gradients must not be negative");
  if (o.budget < 0) refuse("a memory budget must not be negative");
  const Kernels* kernels = kernels_for(o.lanes);
  if (only_planned && (o.lanes == 4 || o.lanes == 8 || o.lanes == 16)) return o;
  if (o.lanes == 0 && o.batch <= kernels->lanes / 2 && kernels->lanes > MIN_LANES)
    kernels = kernels_for(kernels->lanes / 2);  // half of the lanes would be idle
  if (o.lanes < 0 || kernels == nullptr)
    refuse("this processor has no kernels of " + std::to_string(o.lanes) + " lanes");
  o.lanes = static_cast<std::int32_t>(kernels->lanes);
  return o;
}

Layout layout_of(const Nodes& nodes, const Options& options, const Table<Index>& kept,
                 Index activation_bytes, char* start) {
  Layout layout;
  layout.layers = Table<Layer>(nodes.count());
  layout.norms = Table<Norm>(nodes.count());
  Tally tally(start);
  for (const Node& node : nodes) {
    Layer& layer = layout.layers[node.place];
    layer.masked = kept[node.place];
    const bool all = holds_all(nodes[node.owner()], options, layer.masked);
    layer.kept = all ? node.weights() : layer.masked;
  }
  place_parameters(layout, nodes, options, tally);
  layout.memory.parameters = tally.total();
  for (const Node& node : nodes) {
    if (node.is_layer()) place_lists(layout.layers[node.place], node, options, tally);
    if (!node.owns())
      layout.layers[node.place].whole_gradient = layout.layers[node.owner()].whole_gradient;
  }
  layout.memory.lists = tally.total() - layout.memory.parameters;
  const Index before_norms = tally.total();
  for (const Node& node : nodes)
    if (node.is_norm()) place_norm(layout.norms[node.place], node.whole_channels, tally);
  layout.memory.statistics = tally.total() - before_norms;
  const Index before_scratch = tally.total();
  place_scratch(layout, nodes, options, tally);
  layout.memory.scratch = tally.total() - before_scratch;
  layout.memory.activations = activation_bytes;
  layout.activations = tally.take<char>(activation_bytes);
  layout.memory.total = tally.total();
  layout.gaps = tally.gaps();
  return layout;
}

}  // namespace fedtiny
