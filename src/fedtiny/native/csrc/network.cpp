#include "network.h"

#include <cmath>
#include <cstring>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fedtiny {
namespace {

PoolTable pool_table(const Node& node) {
  PoolTable table;
  const Index in[2] = {node.in.height, node.in.width};
  const Index out[2] = {node.out.height, node.out.width};
  const auto small = [](Index i) { return static_cast<std::int32_t>(i); };
  for (int axis = 0; axis < 2; ++axis) {
    for (Index o = 0; o < out[axis]; ++o) {
      Index begin = o * in[axis] / out[axis];
      Index end = ceil_div((o + 1) * in[axis], out[axis]);
      Index divisor = end - begin;
      if (node.kind != FEDTINY_ADAPTIVE_POOL) {
        const Index first = o * node.stride[axis] - node.padding[axis];
        const Index last = std::min<Index>(first + node.kernel[axis], in[axis] + node.padding[axis]);
        begin = std::max<Index>(first, 0);
        end = std::min(last, in[axis]);
        divisor = node.count_padding != 0 ? last - first : end - begin;
      }
      table.begin[axis].push_back(small(begin));
      table.end[axis].push_back(small(end));
      table.divisor[axis].push_back(small(divisor));
    }
  }
  return table;
}

void check_count(Index given, Index wanted) {
  if (given != wanted)
    refuse("a parameter of " + std::to_string(wanted) + " values was given or asked with " +
           std::to_string(given));
}

}  // namespace

Arena::Arena(Index bytes)
    : bytes_(static_cast<std::size_t>(bytes)), block_(std::calloc(bytes_ + ALIGNMENT, 1)) {
  if (block_ == nullptr) refuse("there is no memory for " + std::to_string(bytes) + " bytes");
  const auto place = reinterpret_cast<std::uintptr_t>(block_);
  start_ = reinterpret_cast<char*>((place + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

Arena::~Arena() {
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(block_, bytes_);
#endif
  std::free(block_);
}

Network::Network(const std::vector<Node>& nodes, const Options& options,
                 const std::vector<Index>& kept, const std::int32_t* const* positions)
    : channels_(options.remove_dead != 0 ? live_channels(nodes, kept, positions)
                                         : all_channels(nodes)),
      nodes_(reduced_nodes(nodes, channels_)),
      program_(program_of(nodes_, options.recompute != 0, options.input_gradient != 0)),
      plan_(plan_of(nodes_, program_, options, kept)),
      kernels_(*kernels_for(options.lanes)),
      pool_(options.threads),
      layers_(nodes.size()),
      norms_(nodes.size()),
      geometries_(nodes.size()),
      pools_(nodes.size()),
      lanes_(options.lanes),
      bytes_(options.value_bytes()) {
  if (options.budget > 0 && plan_.memory.total > options.budget)
    refuse("this needs " + std::to_string(plan_.memory.total) + " bytes, more than the budget of " +
           std::to_string(options.budget));
  arena_ = std::make_unique<Arena>(plan_.memory.total);
#if defined(__SANITIZE_ADDRESS__)
  for (const Index gap : plan_.gaps) ASAN_POISON_MEMORY_REGION(at<char>(gap), ALIGNMENT);
#endif
  values_at_.resize(program_.tensors.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const LayerPlan& lp = plan_.layers[i];
    const NormPlan& np = plan_.norms[i];
    float* values = at<float>(plan_.values);
    float* gradients = at<float>(plan_.gradients);
    if (nodes_[i].is_layer()) {
      layers_[i] = {channels_[i].data(),
                    lp.kept,
                    values + lp.first_value,
                    gradients + lp.first_value,
                    nodes[i].bias != 0 ? values + lp.first_bias : nullptr,
                    nodes[i].bias != 0 ? gradients + lp.first_bias : nullptr,
                    at<std::int32_t>(lp.positions),
                    at<std::int32_t>(lp.row_begin),
                    at<std::int32_t>(lp.offsets),
                    at<std::int32_t>(lp.back_begin),
                    at<std::int32_t>(lp.back_offsets),
                    at<std::int32_t>(lp.back_index),
                    at<float>(lp.back_weights)};
      if (nodes[i].kind == FEDTINY_CONVOLUTION)
        geometries_[i] = std::make_unique<Geometry>(geometry_of(nodes_[i], options));
      build_lists(static_cast<int>(i), positions != nullptr ? positions[i] : nullptr);
    } else if (nodes[i].is_norm()) {
      const Index c = nodes_[i].whole_channels;
      float* running = at<float>(np.running);
      double* s = at<double>(np.statistics);
      float* k = at<float>(np.coefficients);
      norms_[i] = {channels_[i].data(), running,   running + c, s,         s + c,
                   s + 2 * c,           s + 3 * c, k,           k + c,     k + 2 * c,
                   k + 3 * c,           k + 4 * c, k + 5 * c};
    } else if (nodes[i].is_pool()) {
      pools_[i] = pool_table(nodes_[i]);
    }
  }
}

Index Network::parameter_count(int place, int parameter) const {
  const Index size = parameter_size(nodes_, place, parameter);
  return parameter == FEDTINY_WEIGHT ? layer(place).kept : size;
}

void Network::set(int place, int parameter, const float* values, Index count) {
  check_count(count, parameter_count(place, parameter));
  for (Index i = 0; i < count; ++i)
    if (!std::isfinite(values[i])) refuse("a parameter has a value that is no finite number");
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  const auto index = static_cast<std::size_t>(place);
  float* to = nullptr;
  switch (parameter) {
    case FEDTINY_WEIGHT: to = layer(place).weights; break;
    case FEDTINY_BIAS: to = layer(place).bias; break;
    case FEDTINY_SCALE: to = at<float>(plan_.values) + plan_.norms[index].first_scale; break;
    case FEDTINY_SHIFT: to = at<float>(plan_.values) + plan_.norms[index].first_shift; break;
    case FEDTINY_RUNNING_MEAN: to = norm(place).running_mean; break;
    case FEDTINY_RUNNING_VAR:
      for (Index i = 0; i < count; ++i)
        if (values[i] < 0) refuse("a variance is not negative");
      to = norm(place).running_var;
      break;
    default: refuse("the statistics of a batch cannot be set");
  }
  if (bytes > 0) std::memcpy(to, values, bytes);
}

void Network::get(int place, int parameter, double* values, Index count) const {
  check_count(count, parameter_count(place, parameter));
  const auto index = static_cast<std::size_t>(place);
  const float* from = nullptr;
  switch (parameter) {
    case FEDTINY_WEIGHT: from = layer(place).weights; break;
    case FEDTINY_BIAS: from = layer(place).bias; break;
    case FEDTINY_SCALE: from = at<float>(plan_.values) + plan_.norms[index].first_scale; break;
    case FEDTINY_SHIFT: from = at<float>(plan_.values) + plan_.norms[index].first_shift; break;
    case FEDTINY_RUNNING_MEAN: from = norm(place).running_mean; break;
    case FEDTINY_RUNNING_VAR: from = norm(place).running_var; break;
    default: {
      const double* own = parameter == FEDTINY_BATCH_MEAN ? norm(place).mean : norm(place).var;
      const double samples = static_cast<double>(pass_.images * node(place).out.plane());
      const double factor = parameter == FEDTINY_CORRECTED_VAR && samples > 1 ? samples / (samples - 1) : 1;
      std::transform(own, own + count, values, [factor](double x) { return x * factor; });
      return;
    }
  }
  std::copy(from, from + count, values);
}

void Network::get_gradient(int place, int parameter, float* values, Index count) const {
  check_count(count, parameter_count(place, parameter));
  const auto index = static_cast<std::size_t>(place);
  const float* all = at<float>(plan_.gradients);
  const float* from = nullptr;
  switch (parameter) {
    case FEDTINY_WEIGHT: from = layer(place).gradient; break;
    case FEDTINY_BIAS: from = layer(place).bias_gradient; break;
    case FEDTINY_SCALE: from = all + plan_.norms[index].first_scale; break;
    case FEDTINY_SHIFT: from = all + plan_.norms[index].first_shift; break;
    default: refuse("statistics have no gradient");
  }
  std::copy(from, from + count, values);
}

}  // namespace fedtiny
