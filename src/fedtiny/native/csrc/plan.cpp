#include "plan.h"

namespace fedtiny {
namespace {

constexpr Index FEWEST_LANES = 8;  // narrower kernels lack fused multiply-add
constexpr Index PARTIAL_GOAL = Index{1} << 20;  // floats of weight gradients summed in pieces
constexpr Index MOST_CHUNKS = 32;

// Hands out places one after the other; under a sanitizer with forbidden ground between them.
class Tally {
 public:
  Index take(Index count, Index bytes_each) {
    const Index place = next_;
    next_ += ceil_div(sized(count, bytes_each), ALIGNMENT) * ALIGNMENT;
    if (SANITIZED) {
      gaps_.push_back(next_);
      next_ += ALIGNMENT;
    }
    return place;
  }
  Index total() const { return next_; }
  const std::vector<Index>& gaps() const { return gaps_; }

 private:
  Index next_ = 0;
  std::vector<Index> gaps_;
};

void place_lists(LayerPlan& layer, const Node& node, const Options& o, Tally& tally) {
  const bool convolution = node.kind == FEDTINY_CONVOLUTION;
  const Index phases = convolution ? node.stride[0] * node.stride[1] : 1;
  const Index inputs = convolution ? node.in.channels : node.in.size();
  layer.positions = tally.take(layer.kept, 4);
  layer.row_begin = tally.take(node.whole_channels + 1, 4);
  layer.offsets = tally.take(layer.kept, 4);
  layer.back_begin = tally.take(phases * inputs + 1, 4);
  layer.back_offsets = tally.take(layer.kept, 4);
  layer.back_index = tally.take(layer.kept, 4);
  layer.back_weights = tally.take(layer.kept, 4);
  if (convolution) {
    layer.pieces = sized(o.blocks(o.batch), geometry_of(node, o).bands);
    const Index goal = PARTIAL_GOAL / std::max<Index>(1, layer.kept + node.whole_channels);
    layer.chunks = std::min({layer.pieces, std::max<Index>(2, goal), MOST_CHUNKS});
  }
}

void place_norm(NormPlan& norm, Index channels, Tally& tally) {
  norm.running = tally.take(2 * channels, 4);
  norm.statistics = tally.take(4 * channels, 8);
  norm.coefficients = tally.take(6 * channels, 4);
}

Index plane_scratch(const Node& node) { return 2 * node.in.plane() + 2 * node.out.plane(); }

// Floats of scratch that one thread needs for one node.
Index scratch_floats(const Node& node, const Options& o, Index images) {
  Index floats = 2 * std::max(node.in.plane(), node.out.plane()) * o.lanes;
  if (node.kind == FEDTINY_CONVOLUTION) {
    const Geometry g = geometry_of(node, o);
    floats = std::max(floats, g.in_floats + g.out_floats + g.row_floats + SPARE * o.lanes);
  } else if (node.kind == FEDTINY_LINEAR) {
    floats = std::max(floats, o.blocks(images) * o.lanes * 2 + SPARE * o.lanes);
  } else {
    floats = std::max(floats, plane_scratch(node) * o.lanes);
  }
  return floats;
}

// Floats that hold what a linear layer reads and the gradients of what it gives.
Index linear_floats(const Node& node, const Options& o, Index images) {
  return sized(o.blocks(images), node.in.size() + node.out.size(), o.lanes);
}

Index sum_floats(const Node& node, const Options& o, Index images) {
  const Index channels = std::max(node.in.channels, node.out.channels);
  Index pieces = o.blocks(images);
  if (node.kind == FEDTINY_CONVOLUTION) pieces = sized(pieces, geometry_of(node, o).bands);
  return sized(3, pieces, channels);
}

}  // namespace

Geometry geometry_of(const Node& node, const Options& o) {
  return Geometry(node, o.lanes, o.blocks(o.batch));
}

Options checked_options(const fedtiny_options& given) {
  Options o{};
  static_cast<fedtiny_options&>(o) = given;
  const auto flag = [](std::int32_t value) { return value == 0 || value == 1; };
  if (o.batch < 1 || o.batch > (1 << 20)) refuse("a batch has 1 to 1048576 images");
  if (o.forward_batch < 1 || o.forward_batch > (1 << 20))
    refuse("a forward batch has 1 to 1048576 images");
  if (o.threads < 1 || o.threads > 1024) refuse("there are 1 to 1024 threads");
  if (!flag(o.half) || !flag(o.recompute) || !flag(o.remove_dead) || !flag(o.input_gradient))
    refuse("an option that is on or off must be 1 or 0");
  if (o.optimizer != FEDTINY_SGD && o.optimizer != FEDTINY_ADAM) refuse("no such optimizer");
  if (o.top_count < 0) refuse("the number of largest gradients must not be negative");
  if (o.budget < 0) refuse("a memory budget must not be negative");
  const Kernels* kernels = kernels_for(o.lanes);
  if (o.lanes == 0 && o.batch <= kernels->lanes / 2 && kernels->lanes > FEWEST_LANES)
    kernels = kernels_for(kernels->lanes / 2);  // half of the lanes would be idle
  if (o.lanes < 0 || kernels == nullptr)
    refuse("this processor has no kernels of " + std::to_string(o.lanes) + " lanes");
  o.lanes = static_cast<std::int32_t>(kernels->lanes);
  return o;
}

Plan plan_of(const std::vector<Node>& nodes, const Program& program, const Options& options,
             const std::vector<Index>& kept) {
  Plan plan;
  plan.nodes = &nodes;
  plan.options = options;
  plan.layers.resize(nodes.size());
  plan.norms.resize(nodes.size());
  Tally tally;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    LayerPlan& layer = plan.layers[i];
    const auto take = [&plan](Index count) {
      const Index first = plan.parameters;
      plan.parameters += count;
      return first;
    };
    if (node.is_layer()) {
      layer.kept = kept[i];
      layer.first_value = take(layer.kept);
      layer.first_bias = take(node.bias != 0 ? node.whole_channels : 0);
    } else if (node.is_norm()) {
      plan.norms[i].first_scale = take(node.whole_channels);
      plan.norms[i].first_shift = take(node.whole_channels);
    }
  }
  plan.values = tally.take(plan.parameters, 4);
  plan.gradients = tally.take(plan.parameters, 4);
  plan.moments[0] = plan.moments[1] = tally.take(plan.parameters, 4);
  if (options.optimizer == FEDTINY_ADAM) plan.moments[1] = tally.take(plan.parameters, 4);
  plan.memory.parameters = tally.total();

  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].is_layer()) place_lists(plan.layers[i], nodes[i], options, tally);
    if (nodes[i].is_norm()) place_norm(plan.norms[i], nodes[i].whole_channels, tally);
  }
  plan.memory.lists = tally.total() - plan.memory.parameters;

  Index scratch = 0, sums = 0, partials = 0, linear = 0, slab = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Node& node = nodes[i];
    const LayerPlan& layer = plan.layers[i];
    for (const Index images : {options.batch, options.forward_batch}) {
      scratch = std::max(scratch, scratch_floats(node, options, images));
      sums = std::max(sums, sum_floats(node, options, images));
      if (node.kind == FEDTINY_LINEAR)
        linear = std::max(linear, linear_floats(node, options, images));
    }
    partials = std::max(partials, layer.chunks * (layer.kept + node.whole_channels));
    if (node.is_layer()) slab = std::max(slab, sized(FILTER_GROUP, node.filter_size()));
  }
  plan.sums = tally.take(sums, 4);
  plan.partials = tally.take(std::max(partials, linear), 4);
  plan.scratch_each = ceil_div(scratch, 16) * 16;
  plan.scratch = tally.take(options.threads * plan.scratch_each, 4);
  plan.heap_each = options.top_count;
  plan.heaps = tally.take(options.threads * plan.heap_each, 8);
  plan.slab_each = ceil_div(slab, 16) * 16;
  plan.slabs = tally.take(options.threads * plan.slab_each, 4);
  plan.logits = tally.take(nodes.back().out.channels * options.lanes, 4);
  plan.memory.scratch = tally.total() - plan.memory.parameters - plan.memory.lists;

  plan.activations = tally.total();
  plan.memory.activations = std::max(plan.training(program, options.batch).bytes,
                                     plan.forward(program, options.forward_batch).bytes);
  tally.take(plan.memory.activations, 1);
  plan.memory.total = tally.total();
  plan.gaps = tally.gaps();
  return plan;
}

}  // namespace fedtiny
