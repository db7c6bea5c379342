#include "storage.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#define FEDTINY_OWN_PAGES
#endif

namespace fedtiny {
namespace {

// Counted from anywhere: only the sizes are of use.
Layout planned(const Nodes& nodes, const Program& program, const Options& options,
               const Table<Index>& kept) {
  return layout_of(nodes, options, kept, activation_bytes(program, options),
                   reinterpret_cast<char*>(ALIGNMENT));
}

// Pages of its own, where there are such: those of malloc may stay with the process when freed.
void* zeroed(std::size_t bytes) {
#if defined(FEDTINY_OWN_PAGES)
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return block == MAP_FAILED ? nullptr : block;
#else
  return std::calloc(bytes, 1);
#endif
}

// Zeroed, with room to be aligned.
Block block_of(Index count) {
  const auto bytes = static_cast<std::size_t>(count + ALIGNMENT);
  const bool possible = count <= PTRDIFF_MAX - ALIGNMENT;  // on a machine of 32 bits it may not be
  Block block(possible ? zeroed(bytes) : nullptr, Release{bytes});
  if (!block) refuse("there is no memory for " + std::to_string(count) + " bytes");
  return block;
}

char* aligned(void* block) {
  const auto place = reinterpret_cast<std::uintptr_t>(block);
  return reinterpret_cast<char*>((place + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

}  // namespace

void Release::operator()(void* block) const {
#if defined(FEDTINY_OWN_PAGES)
  munmap(block, bytes);
#else
  std::free(block);
#endif
}

Storage::Storage(const Nodes& given, const Options& chosen, const Table<Index>& kept,
                 const std::int32_t* const* positions)
    : options(chosen),
      channels(chosen.remove_dead != 0 ? live_channels(given, kept, positions)
                                       : all_channels(given)),
      nodes(reduced_nodes(given, channels)),
      program(program_of(nodes, chosen)) {
  const fedtiny_memory need = planned(nodes, program, options, kept).memory;
  if (options.budget > 0 && need.total > options.budget)
    refuse("this needs " + std::to_string(need.total) + " bytes, more than the budget of " +
           std::to_string(options.budget));
  block_ = block_of(need.total);
  static_cast<Layout&>(*this) =
      layout_of(nodes, options, kept, need.activations, aligned(block_.get()));
#if defined(__SANITIZE_ADDRESS__)
  for (char* gap : gaps) ASAN_POISON_MEMORY_REGION(gap, ALIGNMENT);
#endif
  for (const Node& node : nodes) {
    layers[node.place].numbers = norms[node.place].numbers = channels[node.place].data();
    if (node.is_layer())
      build_lists(*this, node, positions != nullptr ? positions[node.owner()] : nullptr);
  }
}

void Storage::check_count(int node, int parameter, Index given) const {
  const Index size = parameter_size(nodes, node, parameter);
  const Index count = parameter == FEDTINY_WEIGHT ? layers[node].masked : size;
  if (given != count)
    refuse("a parameter of " + std::to_string(count) + " values was given or asked with " +
           std::to_string(given));
}

// Nothing for what a batch measured.
float* Storage::values_of(int node, int parameter) const {
  switch (parameter) {
    case FEDTINY_WEIGHT: return layers[node].weight.values;
    case FEDTINY_BIAS: return layers[node].bias.values;
    case FEDTINY_SCALE: return norms[node].weight.values;
    case FEDTINY_SHIFT: return norms[node].bias.values;
    case FEDTINY_RUNNING_MEAN: return norms[node].running_mean;
    case FEDTINY_RUNNING_VAR: return norms[node].running_var;
    default: return nullptr;
  }
}

template <class Work>
void Storage::each_held(int node, int parameter, Index count, const Work& work) const {
  Index at = 0;
  for (Index i = 0; i < count; ++i, ++at) {
    while (parameter == FEDTINY_WEIGHT && !layers[node].keeps(at)) ++at;
    work(i, at);
  }
}

void Storage::set(int node, int parameter, const float* from, Index count) {
  check_count(node, parameter, count);
  float* to = values_of(node, parameter);
  for (Index i = 0; i < count; ++i) {
    if (!std::isfinite(from[i])) refuse("a parameter has a value that is no finite number");
    if (parameter == FEDTINY_RUNNING_VAR && from[i] < 0) refuse("a variance is not negative");
  }
  if (to == nullptr) refuse("the statistics of a batch cannot be set");
  each_held(node, parameter, count, [&](Index i, Index at) { to[at] = from[i]; });
}

void Storage::get(int node, int parameter, double* to, Index count) const {
  check_count(node, parameter, count);
  const float* from = values_of(node, parameter);
  if (from != nullptr) {
    each_held(node, parameter, count,
              [&](Index i, Index at) { to[i] = static_cast<double>(from[at]); });
    return;
  }
  const double* own = parameter == FEDTINY_BATCH_MEAN ? norms[node].mean : norms[node].var;
  const auto samples = static_cast<double>(measured_images * nodes[node].out.plane());
  const bool corrected = parameter == FEDTINY_CORRECTED_VAR && samples > 1;
  const double factor = corrected ? samples / (samples - 1) : 1;
  std::transform(own, own + count, to, [factor](double x) { return x * factor; });
}

void Storage::get_gradient(int node, int parameter, float* to, Index count) const {
  check_count(node, parameter, count);
  if (parameter > FEDTINY_SHIFT) refuse("statistics have no gradient");
  const float* from = gradients + (values_of(node, parameter) - values);
  each_held(node, parameter, count, [&](Index i, Index at) { to[i] = from[at]; });
}

fedtiny_memory planned_memory(const Nodes& nodes, const Options& options,
                              const Table<Index>& kept) {
  return planned(nodes, program_of(nodes, options), options, kept).memory;
}

}  // namespace fedtiny
