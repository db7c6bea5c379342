// What a request takes of memory, before any of it is taken.
#include <algorithm>

#include "memory.h"
#include "program.h"

namespace fedtiny::device {
namespace {

// Candidates of the pool that a request carries.
std::int64_t pool_rows(const Request& request) {
  const Array* counts = request.find(POOL_COUNTS);
  return counts == nullptr || counts->size() == 0 || counts->shape.empty()
             ? 0
             : counts->shape[0];
}

// Values of the batch-norm statistics of a candidate.
std::int64_t statistics_of(const ParamSpec& params) {
  std::int64_t found = 0;
  for (const std::string& norm : params.norms) {
    const int place = ParamSpec::find(params.dense, norm + ".running_mean");
    found += 2 * params.dense[static_cast<std::size_t>(place)].size;
  }
  return found;
}

// Values that a verb holds beside the network, at most.
std::int64_t planned_values(const Engine& engine, const Request& request, const JsonView& verb) {
  const ParamSpec& params = engine.spec().params;
  const std::string_view name = verb.at(0, "a verb").text("a verb");
  const std::int64_t all = static_cast<std::int64_t>(request.theta->values.size());
  if (name == "train") {
    std::int64_t dense = 0;
    if (verb.at(1, "a verb").has("sum_dense_gradients"))
      for (const Tensor& layer : params.prunable) dense += 3 * layer.size;
    return dense + (engine.spec().train.proximal_mu > 0 ? 2 : 1) * all;
  }
  if (name == "bn_statistics" || name == "losses")
    return 6 * all + pool_rows(request) * (name == "losses" ? 3 : 2 * statistics_of(params));
  if (name == "prune_and_grow") return 8 * all;
  if (name == "drop_scores") return 6 * all;
  if (name == "sensitivity") {
    std::int64_t dense = 0;
    for (const Tensor& layer : params.prunable) dense += 3 * layer.size;
    return dense + 3 * all;
  }
  return all / 4;
}

}  // namespace

std::int64_t planned_bytes(const Engine& engine, const Request& request) {
  const Data& data = engine.data();
  const Spec& spec = engine.spec();
  std::int64_t forward = 0, top = 0, values = 0;
  for (const JsonView& verb : request.program().items("a program")) {
    values += planned_values(engine, request, verb);  // what is found is held to the end
    const JsonView options = verb.at(1, "a verb");
    if (verb.at(0, "a verb").text("a verb") == "bn_statistics")
      forward = std::max(forward, std::min(statistics_order(verb).batch,
                                           static_cast<std::int64_t>(data.development.size())));
    if (options.has("counts"))
      for (const JsonView& count : options.at("counts").items("counts")) {
        const auto layer = static_cast<std::size_t>(spec.params.layer(count.key()));
        const std::int64_t asked = std::min(count.whole("a count", 0, 0x7fffffff),
                                            spec.params.prunable[layer].size);
        top = std::max(top, asked);
        values += 4 * asked;
      }
  }
  std::int64_t largest = 0;
  for (const auto* tensors : {&spec.params.prunable, &spec.params.dense})
    for (const Tensor& tensor : *tensors) largest = std::max(largest, tensor.size);
  largest = std::min(largest, static_cast<std::int64_t>(request.theta->values.size()));
  const std::int64_t images =
      std::max(spec.train.batch, forward) * (4 * data.pixels() + 8) +
      static_cast<std::int64_t>(data.indices.size()) * (spec.preparation.cutout > 0 ? 40 : 24);
  const std::int64_t reply = 4 * static_cast<std::int64_t>(request.theta->values.size());
  const auto held = static_cast<std::int64_t>(memory::held() - memory::arena());
  return held + engine.planned(request.theta->mask->counts, forward, top) + images + 4 * values +
         reply + 8 * largest;
}

}  // namespace fedtiny::device
