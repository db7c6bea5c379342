#include "engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "memory.h"

namespace fedtiny::device {
namespace {

constexpr std::uint64_t STEP_KEY = 0x9E3779B97F4A7C15;  // sets the dropout of steps apart

// As NumPy adds: in eight sums, by halves where there are many.
double pairwise_sum(const double* values, std::size_t count) {
  if (count < 8) {
    double sum = -0.0;
    for (std::size_t i = 0; i < count; ++i) sum += values[i];
    return sum;
  }
  if (count > 128) {
    const std::size_t half = count / 2 - count / 2 % 8;
    return pairwise_sum(values, half) + pairwise_sum(values + half, count - half);
  }
  double r[8];
  std::copy(values, values + 8, r);
  std::size_t i = 8;
  for (; i < count - count % 8; i += 8)
    for (std::size_t j = 0; j < 8; ++j) r[j] += values[i + j];
  double sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
  for (; i < count; ++i) sum += values[i];
  return sum;
}

double mean_of(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return (0.0 + pairwise_sum(values.data(), values.size())) / static_cast<double>(values.size());
}

// A prunable weight has its filters first, then what each reads of the channels of its group; its
// size is known to be that of the network.
void check_shape(const Tensor& layer, const fedtiny_node& node) {
  const bool convolves = node.kind == FEDTINY_CONVOLUTION;
  const std::int64_t taps = convolves ? std::int64_t{node.kernel[0]} * node.kernel[1] : 1;
  if (layer.shape.size() < 2 || layer.shape[0] != node.channels ||
      layer.shape[0] * layer.shape[1] != layer.size / taps)
    refuse("the tensor " + layer.name + " has another shape in the network");
}

}  // namespace

Generator RngKey::generator(const char* purpose) const {
  const std::string name = part > 0 ? purpose + (" " + std::to_string(part)) : purpose;
  return device::generator(seed, name, round, device);
}

Engine::Engine(const Spec& spec, const Data& data) : spec_(spec), data_(data) {
  const auto count = static_cast<std::int32_t>(spec.nodes.size());
  call(fedtiny_create(spec.nodes.data(), count, &network_));
  try {
    const fedtiny_node& image = spec.nodes.front();
    if (image.channels != data.channels || image.height != data.height ||
        image.width != data.width)
      refuse("the images of this device have another shape than the network takes");
    for (const auto* tensors : {&spec.params.prunable, &spec.params.dense})
      for (const Tensor& tensor : *tensors) {
        std::int64_t size = 0;
        call(fedtiny_size(network_, tensor.node, tensor.parameter, &size));
        if (size != tensor.size)
          refuse("the tensor " + tensor.name + " has another size in the network");
      }
    for (const Tensor& layer : spec.params.prunable)
      check_shape(layer, spec.nodes[static_cast<std::size_t>(layer.node)]);
  } catch (...) {
    fedtiny_destroy(network_);
    throw;
  }
  options_.batch = options_.forward_batch = static_cast<std::int32_t>(spec.train.batch);
  options_.threads = 1;
  options_.half = spec.half ? 1 : 0;
  options_.recompute = spec.recompute ? 1 : 0;
  options_.remove_dead = spec.remove_dead ? 1 : 0;
  options_.optimizer = spec.train.adam ? FEDTINY_ADAM : FEDTINY_SGD;
  options_.proximal = spec.train.proximal_mu > 0 ? 1 : 0;
}

Engine::~Engine() {
  fedtiny_destroy(network_);
  memory::set_arena(0);
}

void Engine::call(int failed) const {
  if (failed != 0) refuse(fedtiny_last_error());
}

std::int64_t Engine::planned(const std::vector<std::int64_t>& kept, std::int64_t forward_batch,
                             std::int64_t top_count) const {
  std::vector<std::int64_t> counts(spec_.nodes.size(), -1);
  for (std::size_t i = 0; i < kept.size(); ++i)
    counts[static_cast<std::size_t>(spec_.params.prunable[i].node)] = kept[i];
  fedtiny_options options = options_;
  options.forward_batch = std::max(options.forward_batch, static_cast<std::int32_t>(forward_batch));
  options.top_count = std::max(options.top_count, static_cast<std::int32_t>(top_count));
  fedtiny_memory memory{};
  call(fedtiny_plan(network_, &options, counts.data(), &memory));
  return memory.total;
}

void Engine::prepare(const Mask& mask) {
  std::vector<std::int64_t> kept(spec_.nodes.size(), -1);
  std::vector<const std::int32_t*> positions(spec_.nodes.size(), nullptr);
  for (std::size_t i = 0; i < mask.layers.size(); ++i) {
    const auto node = static_cast<std::size_t>(spec_.params.prunable[i].node);
    if (mask.layers[i].full) continue;
    kept[node] = mask.counts[i];
    positions[node] = mask.layers[i].places.data();
  }
  const std::size_t room = memory::room_beside_arena();
  const auto need = static_cast<std::size_t>(planned(mask.counts, 0, 0));
  if (need > room)
    refuse("the network needs " + std::to_string(need) + " bytes where " + std::to_string(room) +
           " are left of the " + std::to_string(memory::limit()) + " of this device");
  memory::set_arena(0);
  call(fedtiny_prepare(network_, &options_, kept.data(), positions.data()));
  fedtiny_memory memory{};
  call(fedtiny_taken(network_, &memory));
  memory::set_arena(static_cast<std::size_t>(memory.total));
}

void Engine::set(const Tensor& tensor, const float* values, std::int64_t count) {
  call(fedtiny_set(network_, tensor.node, tensor.parameter, values, count));
}

void Engine::load(const Theta& theta) {
  if (!mask_ || mask_->version != theta.mask->version) {
    mask_ = nullptr;
    prepare(*theta.mask);
    mask_ = theta.mask;
  }
  const float* from = theta.values.data();
  for (std::size_t i = 0; i < spec_.params.prunable.size(); from += mask_->counts[i], ++i)
    set(spec_.params.prunable[i], from, mask_->counts[i]);
  for (const Tensor& tensor : spec_.params.dense) {
    set(tensor, from, tensor.size);
    from += tensor.size;
  }
}

std::vector<double> Engine::get(std::int32_t node, std::int32_t parameter,
                                std::int64_t size) const {
  std::vector<double> found(static_cast<std::size_t>(size));
  call(fedtiny_get(network_, node, parameter, found.data(), size));
  return found;
}

Theta Engine::theta() const {
  Theta found{mask_, {}};
  found.values.reserve(static_cast<std::size_t>(mask_->count + spec_.params.dense_count));
  const auto take = [&](const Tensor& tensor, std::int64_t count) {
    for (const double value : get(tensor.node, tensor.parameter, count))
      found.values.push_back(static_cast<float>(value));
  };
  for (std::size_t i = 0; i < spec_.params.prunable.size(); ++i)
    take(spec_.params.prunable[i], mask_->counts[i]);
  for (const Tensor& tensor : spec_.params.dense) take(tensor, tensor.size);
  return found;
}

// Memory for a larger forward pass or more of the largest gradients; gradients of pruned weights
// need the `complete` network, with its dead channels.
void Engine::reserve(std::int64_t forward_batch, std::int64_t top_count, bool complete) {
  fedtiny_options larger = options_;
  larger.forward_batch = std::max(larger.forward_batch, static_cast<std::int32_t>(forward_batch));
  larger.top_count = std::max(larger.top_count, static_cast<std::int32_t>(top_count));
  larger.remove_dead = spec_.remove_dead && !complete ? 1 : 0;
  if (larger.forward_batch == options_.forward_batch && larger.top_count == options_.top_count &&
      larger.remove_dead == options_.remove_dead)
    return;
  if (!mask_) {
    options_ = larger;
    return;
  }
  const Theta own = theta();
  const fedtiny_options before = std::exchange(options_, larger);
  mask_ = nullptr;
  try {
    load(own);
  } catch (...) {
    options_ = before;
    throw;
  }
}

void Engine::fill(Batch& batch, const std::int64_t* samples, std::int64_t count,
                  const Draws* draws, std::int64_t first) const {
  const std::int64_t pixels = data_.pixels();
  batch.images.resize(static_cast<std::size_t>(count * pixels));
  batch.labels.resize(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    spec_.preparation.prepare(data_, samples[i], draws, first + i,
                              batch.images.data() + i * pixels);
    batch.labels[static_cast<std::size_t>(i)] = data_.labels[samples[i]];
  }
}

fedtiny_score Engine::run(fedtiny_pass pass, const Batch& batch) {
  pass.images = batch.images.data();
  pass.labels = batch.labels.data();
  pass.count = static_cast<std::int64_t>(batch.labels.size());
  fedtiny_score score{};
  call(fedtiny_run(network_, &pass, &score));
  return score;
}

std::int64_t Engine::batch_size() const {
  const auto samples = static_cast<std::int64_t>(data_.indices.size());
  if (samples < 2) refuse("a device needs at least two samples to train with batch norm");
  return std::min(batch(), samples);
}

void Engine::start(const RngKey& key, const Theta& received) {
  fedtiny_rates rates = spec_.train.rates(key.round);
  if (rates.proximal == 0) return call(fedtiny_start(network_, &rates));
  const Theta own = theta();
  load(received.mask->version == mask_->version ? received
                                                : remasked(received, mask_, spec_.params));
  call(fedtiny_start(network_, &rates));
  load(own);
}

double Engine::train(const RngKey& key, std::int64_t epochs, const Theta& received,
                     std::vector<std::vector<float>>& sums) {
  reserve(0, 0, !sums.empty());
  std::vector<fedtiny_grad_query> queries;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    fedtiny_grad_query query{};
    query.node = spec_.params.prunable[i].node;
    query.dense = sums[i].data();
    queries.push_back(query);
  }
  fedtiny_pass pass{};
  pass.mode = FEDTINY_TRAIN;
  pass.queries = queries.data();
  pass.query_count = static_cast<std::int32_t>(queries.size());
  pass.freeze_norms = spec_.train.freezes_bn(key.round) ? 1 : 0;
  pass.seed = key.generator("dropout").up_to(MAX_SEED);
  start(key, received);
  const std::int64_t size = batch_size();
  const auto samples = static_cast<std::int64_t>(data_.indices.size());
  Generator order = key.generator("permutation"), noise = key.generator("augmentation");
  std::vector<double> losses;
  losses.reserve(static_cast<std::size_t>(epochs * (samples / size)));
  Batch batch;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    Samples shuffled = data_.indices;
    order.shuffle(shuffled.data(), shuffled.size());
    const Draws draws = spec_.preparation.draws(noise, samples);
    for (std::int64_t at = 0; at + size <= samples; at += size) {
      fill(batch, shuffled.data() + at, size, &draws, at);
      losses.push_back(run(pass, batch).loss / static_cast<double>(size));
      pass.seed += STEP_KEY;
    }
  }
  const auto steps = static_cast<float>(std::max<std::size_t>(losses.size(), 1));
  for (std::vector<float>& sum : sums)
    for (float& value : sum) value /= steps;
  return mean_of(losses);
}

}  // namespace fedtiny::device
