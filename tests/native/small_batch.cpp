// Trains a network of small tensors with batches of every size up to the planned one. Its memory
// ends at a forbidden page, and what is behind it must stay as it was. Prints how many.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fedtiny_native.h"

namespace {

constexpr std::size_t SLACK = 64;  // bytes that a block has more, to be aligned
constexpr unsigned char UNTOUCHED = 0x5a;
constexpr int BATCH = 29, PIXELS = 6;
int watched = 0;  // blocks

void stop(const char* why) {
  std::fprintf(stderr, "%s: %s\n", why, fedtiny_last_error());
  std::exit(1);
}

void check(const char* what, int refused) {
  if (refused != 0) stop(what);
}

struct Network {
  std::vector<fedtiny_node> nodes;

  int add(int kind, int channels = 0) { return add(kind, channels, last()); }
  int add(int kind, int channels, int first, int second = -1) {
    fedtiny_node node{};
    node.kind = kind;
    node.first = first;
    node.second = second;
    node.shared = -1;
    node.channels = channels;
    node.groups = 1;
    for (int axis = 0; axis < 2; ++axis)
      node.stride[axis] = node.dilation[axis] = node.kernel[axis] = 1;
    node.epsilon = 1e-5F;
    node.momentum = 0.1F;
    nodes.push_back(node);
    return last();
  }
  int last() const { return static_cast<int>(nodes.size()) - 1; }
};

// Four lanes of a tensor are a quarter of a cache line, so that places depend on how sizes are
// rounded: without care 25 images of this network take more room than 29.
Network network() {
  Network made;
  made.add(FEDTINY_INPUT, 1);
  made.nodes[0].height = 2;
  made.nodes[0].width = 3;
  for (const int channels : {2, 6}) {
    made.add(FEDTINY_CONVOLUTION, channels);
    made.add(FEDTINY_BATCH_NORM);
    made.add(FEDTINY_RELU);
  }
  made.add(FEDTINY_CONVOLUTION, 3);
  made.add(FEDTINY_BATCH_NORM);
  const int forked = made.add(FEDTINY_CONVOLUTION, 3);
  const int one = made.add(FEDTINY_CONVOLUTION, 1, forked);
  const int other = made.add(FEDTINY_CONVOLUTION, 1, forked);
  made.add(FEDTINY_ADD, 0, one, other);
  made.add(FEDTINY_FLATTEN);
  made.add(FEDTINY_LINEAR, 2);
  return made;
}

}  // namespace

extern "C" void* mmap(void*, std::size_t bytes, int, int, int, off_t) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t whole = (bytes + page - 1) / page * page;
  auto* start = reinterpret_cast<unsigned char*>(
      syscall(SYS_mmap, nullptr, whole + page, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (mprotect(start + whole, page, PROT_NONE) != 0) stop("mprotect");
  unsigned char* block = start + (whole - bytes) / SLACK * SLACK;
  std::fill(block + bytes - SLACK, start + whole, UNTOUCHED);
  ++watched;
  return block;
}

extern "C" int munmap(void* block, std::size_t bytes) {
  const auto* end = static_cast<const unsigned char*>(block) + bytes;
  if (std::any_of(end - SLACK, end, [](unsigned char byte) { return byte != UNTOUCHED; }))
    stop("something was written behind a block of memory");
  return 0;
}

int main() {
  const Network made = network();
  const std::vector<std::int64_t> kept(made.nodes.size(), -1), labels(BATCH, 1);
  const std::vector<float> images(BATCH * PIXELS, 0.5F);
  fedtiny_options options{};
  options.lanes = 4;
  options.batch = BATCH;
  options.forward_batch = options.threads = options.recompute = 1;
  fedtiny_rates rates{};
  rates.learning_rate = 0.1;
  fedtiny_network* net = nullptr;
  check("create", fedtiny_create(made.nodes.data(), static_cast<int>(made.nodes.size()), &net));
  check("prepare", fedtiny_prepare(net, &options, kept.data(), nullptr));
  check("start", fedtiny_start(net, &rates));
  for (int count = 1; count <= BATCH; ++count) {
    fedtiny_pass pass{};
    fedtiny_score score{};
    pass.mode = FEDTINY_TRAIN;
    pass.images = images.data();
    pass.labels = labels.data();
    pass.count = count;
    check("run", fedtiny_run(net, &pass, &score));
  }
  fedtiny_destroy(net);
  std::printf("%d batches in %d block\n", BATCH, watched);
  return 0;
}
