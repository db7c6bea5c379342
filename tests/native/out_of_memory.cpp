// Lives a network's life again and again, each time out of memory from another allocation on until
// the call returns: it must say so, and the next one must work. Prints how many calls failed.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "fedtiny_native.h"

namespace {

long until_failure = -1;  // allocations; below zero none fails
bool out_of_memory = false;
long failures = 0;
bool may_start_threads = false;

void* allocated(std::size_t bytes) {
  if (until_failure == 0) {
    out_of_memory = true;
    throw std::bad_alloc();
  }
  if (until_failure > 0) --until_failure;
  if (void* place = std::malloc(bytes)) return place;
  throw std::bad_alloc();
}

void stop(const char* why) {
  std::fprintf(stderr, "%s: %s\n", why, fedtiny_last_error());
  std::exit(1);
}

// A call during which memory may run out, and again with memory. A thread that cannot be started
// is no failure: the others do its work.
template <class Call>
void survives(const char* name, long& countdown, const Call& call) {
  out_of_memory = false;
  until_failure = countdown;
  const int refused = call();
  countdown = out_of_memory ? -1 : until_failure;
  until_failure = -1;
  if (out_of_memory) ++failures;
  if (refused != 0 && !out_of_memory) stop(name);
  if (refused == 0 && out_of_memory && !may_start_threads) stop(name);
  if (refused == 0) return;
  if (std::strcmp(fedtiny_last_error(), "there is not enough memory") != 0) stop(name);
  if (call() != 0) stop(name);
}

fedtiny_node node(int kind, int first, int channels) {
  fedtiny_node n{};
  n.kind = kind;
  n.first = first;
  n.second = n.shared = -1;
  n.channels = channels;
  n.groups = 1;
  for (int axis = 0; axis < 2; ++axis) n.stride[axis] = n.dilation[axis] = n.kernel[axis] = 1;
  n.epsilon = 1e-5F;
  n.momentum = 0.1F;
  return n;
}

std::vector<fedtiny_node> nodes() {
  std::vector<fedtiny_node> made = {node(FEDTINY_INPUT, -1, 2), node(FEDTINY_CONVOLUTION, 0, 6),
                                    node(FEDTINY_BATCH_NORM, 1, 0), node(FEDTINY_RELU, 2, 0),
                                    node(FEDTINY_FLATTEN, 3, 0), node(FEDTINY_LINEAR, 4, 3)};
  made[0].height = made[0].width = 5;
  for (int axis = 0; axis < 2; ++axis) {
    made[1].kernel[axis] = 3;
    made[1].padding[axis] = made[1].padding_end[axis] = 1;
  }
  made[5].bias = 1;
  return made;
}

void live(long countdown, int threads) {
  const std::vector<fedtiny_node> network = nodes();
  const std::int64_t kept[] = {-1, 4, -1, -1, -1, -1};
  const std::int32_t positions[] = {1, 20, 47, 90};
  const std::int32_t* lists[] = {nullptr, positions, nullptr, nullptr, nullptr, nullptr};
  fedtiny_options options{};
  options.batch = options.forward_batch = 20;
  options.threads = threads;
  options.top_count = 5;
  std::vector<float> images(20 * 50, 0.5F), fisher(153), values(5), weights(4, 0.1F);
  std::vector<std::int32_t> indices(5);
  const std::vector<std::int64_t> labels(20, 1);
  fedtiny_rates rates{};
  rates.learning_rate = 0.1;
  fedtiny_grad_query query{};
  fedtiny_pass pass{};
  pass.mode = FEDTINY_TRAIN;
  pass.images = images.data();
  pass.labels = labels.data();
  pass.count = 20;
  pass.queries = &query;
  pass.query_count = 1;

  fedtiny_network* net = nullptr;
  fedtiny_memory memory{};
  fedtiny_score score{};
  survives("create", countdown, [&] { return fedtiny_create(network.data(), 6, &net); });
  survives("plan", countdown, [&] { return fedtiny_plan(net, &options, kept, &memory); });
  survives("prepare", countdown, [&] { return fedtiny_prepare(net, &options, kept, lists); });
  survives("set", countdown, [&] { return fedtiny_set(net, 1, FEDTINY_WEIGHT, weights.data(), 4); });
  survives("start", countdown, [&] { return fedtiny_start(net, &rates); });
  for (const int layer : {1, 5})
    survives("run", countdown, [&] {
      query = {layer, 5, indices.data(), values.data(), nullptr, fisher.data(), 0};
      return fedtiny_run(net, &pass, &score);
    });
  fedtiny_destroy(net);
}

}  // namespace

void* operator new(std::size_t bytes) { return allocated(bytes); }
void* operator new[](std::size_t bytes) { return allocated(bytes); }
void operator delete(void* place) noexcept { std::free(place); }
void operator delete[](void* place) noexcept { std::free(place); }
void operator delete(void* place, std::size_t) noexcept { std::free(place); }
void operator delete[](void* place, std::size_t) noexcept { std::free(place); }

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  may_start_threads = threads > 1;
  for (long n = 0, before = -1; before != failures; ++n) {
    before = failures;
    live(n, threads);
  }
  std::printf("%ld calls failed\n", failures);
  return 0;
}
