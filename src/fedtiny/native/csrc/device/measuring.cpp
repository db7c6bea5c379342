// What an engine measures without training: batch-norm statistics and losses of candidates.
#include <algorithm>
#include <cmath>

#include "engine.h"

namespace fedtiny::device {
namespace {

constexpr double MOMENTUM = 0.1;  // of running statistics, if several passes are asked for
constexpr const char* RANKS = "pool.ranks";

// Equal parts, never of one sample: where each begins, and the end.
std::vector<std::int64_t> parts_of(std::int64_t samples, std::int64_t most) {
  const std::int64_t parts =
      std::max<std::int64_t>(1, std::min((samples + most - 1) / most, samples / 2));
  std::vector<std::int64_t> found{0};
  for (std::int64_t i = 0; i < parts; ++i)
    found.push_back(found.back() + samples / parts + (i < samples % parts ? 1 : 0));
  return found;
}

}  // namespace

Pool::Pool(const Request& request, const ParamSpec& spec)
    : theta_(*request.theta), spec_(spec), counts_(request.find(POOL_COUNTS)),
      ranks_(request.find(RANKS)) {
  if (counts_ == nullptr) refuse("the request carries no pool of candidates");
  const std::int32_t* counts = counts_->wholes();
  const auto layers = static_cast<std::int64_t>(spec.prunable.size());
  if (counts_->shape.size() != 2 || counts_->shape[1] != layers || counts_->shape[0] < 1)
    refuse("a pool needs one row of " + std::to_string(layers) + " layer counts a candidate");
  for (std::int64_t i = 0; i < counts_->size(); ++i)
    if (counts[i] < 0 || counts[i] > theta_.mask->kept(static_cast<int>(i % layers)))
      refuse("a candidate keeps more weights of a layer than the pool carries");
  if (ranks_ != nullptr) check_ranks();
}

void Pool::check_ranks() const {
  const std::int32_t* ranks = ranks_->wholes();
  if (ranks_->shape.size() != 1 || ranks_->shape[0] != theta_.mask->count)
    refuse("a pool's ranks must name every place of each layer once");
  for (const std::int64_t count : theta_.mask->counts) {
    std::vector<bool> seen(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i, ++ranks) {
      if (*ranks < 0 || *ranks >= count || seen[static_cast<std::size_t>(*ranks)])
        refuse("a pool's ranks must name every place of each layer once");
      seen[static_cast<std::size_t>(*ranks)] = true;
    }
  }
}

Theta Pool::candidate(std::int64_t number) const {
  const auto layers = static_cast<std::int64_t>(spec_.prunable.size());
  const std::int32_t* counts = counts_->wholes() + number * layers;
  const std::int32_t* ranks = ranks_ != nullptr ? ranks_->wholes() : nullptr;
  std::vector<std::vector<std::int64_t>> chosen;
  const float* values = theta_.values.data();
  for (int layer = 0; layer < layers; ++layer) {
    const std::int64_t kept = theta_.mask->kept(layer);
    if (ranks == nullptr) {
      chosen.push_back(largest(values, kept, counts[layer]));
    } else {
      chosen.emplace_back();
      for (std::int64_t i = 0; i < kept; ++i)
        if (ranks[i] < counts[layer]) chosen.back().push_back(i);
      ranks += kept;
    }
    values += kept;
  }
  return pruned_to(theta_, chosen, spec_);
}

void Engine::forward_own(const Samples& samples, std::int64_t start, std::int64_t count) {
  Batch batch;
  fill(batch, samples.data() + start, count, nullptr, 0);
  fedtiny_pass pass{};
  pass.mode = FEDTINY_OWN_STATISTICS;
  run(pass, batch);
}

// Of the last pass: means and corrected variances drawn near by a weight, or means and mean squares
// added with it.
void Engine::take_means(std::vector<Moments>& found, double weight, bool square) {
  for (Moments& own : found) {
    const auto size = static_cast<std::int64_t>(own.first.size());
    const std::vector<double> mean = get(own.node, FEDTINY_BATCH_MEAN, size);
    const std::vector<double> var =
        get(own.node, square ? FEDTINY_BATCH_VAR : FEDTINY_CORRECTED_VAR, size);
    for (std::size_t i = 0; i < own.first.size(); ++i) {
      if (square) {
        own.first[i] += mean[i] * weight;
        own.second[i] += (var[i] + mean[i] * mean[i]) * weight;
      } else {
        own.first[i] += weight * (mean[i] - own.first[i]);
        own.second[i] += weight * (var[i] - own.second[i]);
      }
    }
  }
}

std::vector<Array> Engine::bn_statistics(const Pool& pool, const StatisticsOrder& order) {
  const Samples& samples = data_.development;
  const auto count = static_cast<std::int64_t>(samples.size());
  const std::vector<std::int64_t> parts = parts_of(count, order.batch);
  reserve(parts[1], 0, false);
  std::vector<Array> found;
  for (const std::string& norm : spec_.params.norms)
    for (const char* kind : {".running_mean", order.square ? ".running_square" : ".running_var"}) {
      const int place = ParamSpec::find(spec_.params.dense, norm + ".running_mean");
      const std::int64_t size = spec_.params.dense[static_cast<std::size_t>(place)].size;
      found.push_back({norm + kind, Dtype::float32, {pool.size(), size}, {}});
      found.back().data.reserve(static_cast<std::size_t>(pool.size() * size) * sizeof(float));
    }
  for (std::int64_t candidate = 0; candidate < pool.size(); ++candidate) {
    load(pool.candidate(candidate));
    std::vector<Moments> moments;
    for (const std::string& norm : spec_.params.norms) {
      const int place = ParamSpec::find(spec_.params.dense, norm + ".running_mean");
      const Tensor& tensor = spec_.params.dense[static_cast<std::size_t>(place)];
      const auto size = static_cast<std::size_t>(tensor.size);
      moments.push_back({tensor.node, std::vector<double>(size, 0.0),
                         std::vector<double>(size, order.square ? 0.0 : 1.0)});
    }
    std::int64_t number = 0;
    const std::int64_t passes = order.square ? 1 : order.passes;
    for (std::int64_t pass = 0; pass < passes; ++pass)
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const std::int64_t part = parts[i + 1] - parts[i];
        forward_own(samples, parts[i], part);
        const double share = static_cast<double>(part) / static_cast<double>(count);
        const double running = passes == 1 ? 1.0 / static_cast<double>(++number) : MOMENTUM;
        take_means(moments, order.square ? share : running, order.square);
      }
    for (std::size_t i = 0; i < moments.size(); ++i)
      for (const bool second : {false, true})
        for (const double value : second ? moments[i].second : moments[i].first) {
          const auto single = static_cast<float>(value);
          const auto* bytes = reinterpret_cast<const std::uint8_t*>(&single);
          Bytes& to = found[2 * i + (second ? 1 : 0)].data;
          to.insert(to.end(), bytes, bytes + sizeof single);
        }
  }
  return found;
}

std::vector<float> Engine::losses(const Pool& pool, const std::vector<Array>& arrays) {
  std::vector<float> found;
  found.reserve(static_cast<std::size_t>(pool.size()));
  for (std::int64_t candidate = 0; candidate < pool.size(); ++candidate) {
    Theta theta = pool.candidate(candidate);
    for (const Array& rows : arrays) {
      if (rows.name == POOL_COUNTS || rows.name == RANKS) continue;
      std::int64_t at = theta.mask->count;
      const int place = ParamSpec::find(spec_.params.dense, rows.name);
      if (place < 0) refuse(rows.name + " is not a dense tensor of the model");
      for (int i = 0; i < place; ++i) at += spec_.params.dense[static_cast<std::size_t>(i)].size;
      const std::int64_t size = spec_.params.dense[static_cast<std::size_t>(place)].size;
      if (rows.shape.empty() || rows.shape[0] != pool.size() || rows.size() != pool.size() * size)
        refuse(rows.name + " needs " + std::to_string(size) + " values a candidate");
      const float* from = rows.floats() + candidate * size;
      std::copy(from, from + size, theta.values.data() + at);
    }
    load(theta);
    found.push_back(static_cast<float>(measure(data_.development).loss));
  }
  return found;
}

Score Engine::measure(const Samples& samples) {
  const auto count = static_cast<std::int64_t>(samples.size());
  if (count == 0) refuse("this device has no samples to measure with");
  const std::int64_t size = std::max<std::int64_t>(options_.forward_batch, batch());
  double loss = 0;
  std::int64_t correct = 0;
  Batch batch;
  for (std::int64_t start = 0; start < count; start += size) {
    fill(batch, samples.data() + start, std::min(size, count - start), nullptr, 0);
    fedtiny_pass pass{};
    pass.mode = FEDTINY_FORWARD;
    const fedtiny_score score = run(pass, batch);
    loss += score.loss;
    correct += score.correct;
  }
  return {loss / static_cast<double>(count),
          static_cast<double>(correct) / static_cast<double>(count)};
}

}  // namespace fedtiny::device
