#include "model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fedtiny::device {
namespace {

// As Python's repr writes them; names have no sign that it would escape.
void put_tensors(std::string& to, const std::vector<Tensor>& tensors) {
  to += "(";
  for (const Tensor& tensor : tensors) {
    to += "('" + tensor.name + "', (";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i)
      to += (i > 0 ? ", " : "") + std::to_string(tensor.shape[i]);
    to += tensor.shape.size() == 1 ? ",)), " : ")), ";
  }
  if (!tensors.empty()) to.resize(to.size() - (tensors.size() == 1 ? 1 : 2));
  to += ")";
}

std::vector<std::int64_t> chosen_by(const std::vector<float>& scores, std::int64_t count) {
  std::vector<std::int64_t> found;
  const auto size = static_cast<std::int64_t>(scores.size());
  count = std::clamp<std::int64_t>(count, 0, size);
  found.reserve(static_cast<std::size_t>(count));
  float cut = -std::numeric_limits<float>::infinity();
  std::int64_t ties = count;
  if (count > 0 && count < size) {
    std::vector<float> copy(scores);
    std::nth_element(copy.data(), copy.data() + (size - count), copy.data() + size);
    cut = copy[static_cast<std::size_t>(size - count)];
    for (const float score : scores) ties -= score > cut;
  }
  for (std::int64_t i = 0; i < size && count > 0; ++i) {
    const float score = scores[static_cast<std::size_t>(i)];
    if (score > cut || (score == cut && ties-- > 0) || count == size) found.push_back(i);
  }
  return found;
}

// What is no number ranks as the largest.
std::vector<float> magnitudes(const float* values, std::int64_t size, float sign) {
  std::vector<float> found(static_cast<std::size_t>(size));
  std::transform(values, values + size, found.begin(), [sign](float value) {
    return sign * (std::isnan(value) ? std::numeric_limits<float>::infinity() : std::fabs(value));
  });
  return found;
}

}  // namespace

int ParamSpec::find(const std::vector<Tensor>& tensors, std::string_view name) {
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].name == name) return static_cast<int>(i);
  return -1;
}

int ParamSpec::layer(std::string_view name) const {
  const int found = find(prunable, name);
  if (found < 0) refuse("the network has no prunable layer '" + std::string(name) + "'");
  return found;
}

std::uint32_t fingerprint_of(const ParamSpec& spec) {
  std::string text = "(";
  put_tensors(text, spec.prunable);
  text += ", ";
  put_tensors(text, spec.dense);
  Blake2b digest(4);
  digest.update(text + ")");
  return static_cast<std::uint32_t>(digest.digest());
}

Mask::Mask(const ParamSpec& spec, std::vector<Positions> positions) : layers(std::move(positions)) {
  Blake2b digest(8, &spec.fingerprint, sizeof spec.fingerprint);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Tensor& layer = spec.prunable[i];
    Positions& own = layers[i];
    if (!own.full && own.count(layer.size) == layer.size) own = Positions{true, {}};
    counts.push_back(own.count(layer.size));
    count += counts.back();
    digest.update(layer.name + ":" + std::to_string(counts.back()) + ";");
    digest.update(own.places.data(), own.places.size() * sizeof(std::int32_t));
  }
  version = digest.digest();
}

std::uint64_t Theta::version() const {
  Blake2b digest(8, &mask->version, sizeof mask->version);
  digest.update(values.data(), values.size() * sizeof(float));
  return digest.digest();
}

std::int64_t Theta::start(int layer) const {
  std::int64_t found = 0;
  for (int i = 0; i < layer; ++i) found += mask->kept(i);
  return found;
}

Theta remasked(const Theta& theta, std::shared_ptr<const Mask> mask, const ParamSpec& spec) {
  Theta found{mask, {}};
  found.values.reserve(static_cast<std::size_t>(mask->count + spec.dense_count));
  const float* from = theta.values.data();
  for (std::size_t layer = 0; layer < mask->layers.size(); ++layer) {
    const Positions &old = theta.mask->layers[layer], &own = mask->layers[layer];
    const std::int64_t size = spec.prunable[layer].size, held = old.count(size);
    for (std::int64_t i = 0, at = 0; i < own.count(size); ++i) {
      while (at < held && old.at(at) < own.at(i)) ++at;
      found.values.push_back(at < held && old.at(at) == own.at(i) ? from[at] : 0.0f);
    }
    from += held;
  }
  found.values.insert(found.values.end(), from, from + spec.dense_count);
  return found;
}

Theta pruned_to(const Theta& theta, const std::vector<std::vector<std::int64_t>>& chosen,
                const ParamSpec& spec) {
  Theta found;
  std::vector<Positions> layers;
  const float* from = theta.values.data();
  std::size_t total = static_cast<std::size_t>(spec.dense_count);
  for (const auto& own : chosen) total += own.size();
  found.values.reserve(total);
  for (std::size_t layer = 0; layer < chosen.size(); ++layer) {
    const Positions& old = theta.mask->layers[layer];
    Positions own;
    own.places.reserve(chosen[layer].size());
    for (const std::int64_t i : chosen[layer]) {
      own.places.push_back(static_cast<std::int32_t>(old.at(i)));
      found.values.push_back(from[i]);
    }
    layers.push_back(std::move(own));
    from += theta.mask->counts[layer];
  }
  found.values.insert(found.values.end(), from, from + spec.dense_count);
  found.mask = std::make_shared<Mask>(spec, std::move(layers));
  return found;
}

std::vector<std::int64_t> largest(const float* values, std::int64_t size, std::int64_t count) {
  return chosen_by(magnitudes(values, size, 1), count);
}

std::vector<std::int64_t> smallest(const float* values, std::int64_t size, std::int64_t count) {
  return chosen_by(magnitudes(values, size, -1), count);
}

}  // namespace fedtiny::device
