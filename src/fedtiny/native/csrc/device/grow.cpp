#include "grow.h"

#include <algorithm>
#include <iterator>

namespace fedtiny::device {
namespace {

std::vector<std::int32_t> all_places(const Positions& positions, std::int64_t size) {
  std::vector<std::int32_t> found;
  found.reserve(static_cast<std::size_t>(positions.count(size)));
  for (std::int64_t i = 0; i < positions.count(size); ++i)
    found.push_back(static_cast<std::int32_t>(positions.at(i)));
  return found;
}

// Of the pruned weights with a gradient, the places of the largest.
std::vector<std::int32_t> grown(const std::vector<std::int32_t>& kept, const Gradient& gradient,
                                std::int64_t number) {
  std::vector<std::int32_t> places;
  std::vector<float> values;
  for (std::size_t i = 0; i < gradient.values.size(); ++i) {
    const std::int32_t place = gradient.positions.places[i];
    if (gradient.values[i] == 0 || std::binary_search(kept.begin(), kept.end(), place)) continue;
    places.push_back(place);
    values.push_back(gradient.values[i]);
  }
  std::vector<std::int32_t> found;
  for (const std::int64_t i :
       largest(values.data(), static_cast<std::int64_t>(values.size()), number))
    found.push_back(places[static_cast<std::size_t>(i)]);
  return found;
}

// Sorted whole numbers below a bound, no two the same; at most half of them.
std::vector<std::int64_t> distinct(std::int64_t below, std::int64_t count, Generator& draw) {
  std::vector<std::int64_t> found;
  while (static_cast<std::int64_t>(found.size()) < count) {
    for (std::int64_t i = count - static_cast<std::int64_t>(found.size()); i > 0; --i)
      found.push_back(
          static_cast<std::int64_t>(draw.up_to(static_cast<std::uint64_t>(below - 1))));
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
  }
  return found;
}

// Which of the pruned weights of a layer, by their rank among these.
std::vector<std::int64_t> drawn_ranks(std::int64_t pruned, std::int64_t count, Generator& draw) {
  if (2 * count <= pruned) return distinct(pruned, count, draw);
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(pruned));
  for (std::int64_t i = 0; i < pruned; ++i) ranks[static_cast<std::size_t>(i)] = i;
  draw.shuffle(ranks.data(), ranks.size());
  ranks.resize(static_cast<std::size_t>(count));
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace

Theta grow_and_drop(const Theta& theta, const std::vector<Gradient>& gradients,
                    const std::vector<LayerCount>& counts, const ParamSpec& spec) {
  std::vector<Positions> layers = theta.mask->layers;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto layer = static_cast<std::size_t>(counts[i].layer);
    const std::int64_t kept = theta.mask->counts[layer];
    const std::vector<std::int32_t> old =
        all_places(theta.mask->layers[layer], spec.prunable[layer].size);
    const std::vector<std::int32_t> added =
        grown(old, gradients[i], std::min(counts[i].count, kept));
    const float* values = theta.values.data() + theta.start(counts[i].layer);
    std::vector<std::int32_t> rest = old;
    const auto leaving = smallest(values, kept, static_cast<std::int64_t>(added.size()));
    for (const std::int64_t place : leaving) rest[static_cast<std::size_t>(place)] = -1;
    rest.erase(std::remove(rest.begin(), rest.end(), -1), rest.end());
    layers[layer] = Positions{};
    std::set_union(rest.begin(), rest.end(), added.begin(), added.end(),
                   std::back_inserter(layers[layer].places));
  }
  return remasked(theta, std::make_shared<const Mask>(spec, std::move(layers)), spec);
}

std::vector<float> drop_gains(const float* weights, const std::vector<float>& gradients,
                              const std::vector<float>& scaled) {
  std::vector<float> found;
  found.reserve(gradients.size());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const double ratio = scaled[i] != 0 ? static_cast<double>(gradients[i] / scaled[i]) : 0;
    const double fisher = ratio * ratio / 2, weight = static_cast<double>(weights[i]);
    found.push_back(static_cast<float>(
        weight * (weight * fisher / 2 - static_cast<double>(gradients[i]))));
  }
  return found;
}

std::vector<Gradient> random_pruned(const Mask& mask, const std::vector<LayerCount>& counts,
                                    std::int64_t seed, std::int64_t round, const ParamSpec& spec) {
  Generator draw = generator(seed, "shared gradients", round, SERVER);
  std::vector<Gradient> found;
  for (const auto& [layer, asked] : counts) {
    const auto place = static_cast<std::size_t>(layer);
    const std::int64_t pruned = spec.prunable[place].size - mask.kept(layer);
    const std::int64_t count = std::min(asked, pruned);
    Gradient own{layer, {}, std::vector<float>(static_cast<std::size_t>(count))};
    std::int64_t before = 0;  // kept weights that lie before a pruned one
    for (const std::int64_t rank : drawn_ranks(pruned, count, draw)) {
      while (before < mask.kept(layer) && mask.layers[place].at(before) - before <= rank) ++before;
      own.positions.places.push_back(static_cast<std::int32_t>(rank + before));
    }
    found.push_back(std::move(own));
  }
  return found;
}

}  // namespace fedtiny::device
