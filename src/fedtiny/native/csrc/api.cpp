// The C interface: nothing that is thrown gets past it.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "executor.h"

struct fedtiny_network {
  fedtiny::Nodes nodes;
  std::unique_ptr<fedtiny::Storage> storage;  // once prepared
  std::unique_ptr<fedtiny::Executor> executor;
};

namespace {

using namespace fedtiny;

#if !defined(FEDTINY_SINGLE_THREAD)
thread_local
#endif
    char last_error[512];  // in place: there may be no memory to tell of

int failed(const char* why) noexcept {
  const std::size_t length = std::min(std::strlen(why), sizeof last_error - 1);
  std::memcpy(last_error, why, length);
  last_error[length] = '\0';
  return 1;
}

template <class Work>
int guarded(Work&& work) noexcept {
  try {
    work();
    return 0;
  } catch (const std::bad_alloc&) {
    return failed("there is not enough memory");
  } catch (const std::exception& error) {
    return failed(error.what());
  } catch (...) {
    return failed("an unknown error");
  }
}

template <class T>
T& given(T* pointer, const char* what) {
  if (pointer == nullptr) refuse(std::string("no ") + what + " was given");
  return *pointer;
}

const fedtiny_network& prepared(const fedtiny_network* network) {
  if (!given(network, "network").executor) refuse("the network was not prepared");
  return *network;
}

Table<Index> checked_kept(const Nodes& nodes, const std::int64_t* kept) {
  Table<Index> counts;
  for (const Node& node : nodes) {
    const Index all = node.weights();
    const Index given = kept == nullptr ? -1 : kept[node.owner()];
    const Index count = given == -1 ? all : given;
    if (count < 0 || count > all)
      refuse("node " + std::to_string(node.place) + " cannot keep " + std::to_string(count) +
             " of " + std::to_string(all) + " weights");
    counts.push_back(count);
  }
  return counts;
}

}  // namespace

extern "C" {

const char* fedtiny_last_error(void) { return last_error; }

const char* fedtiny_instructions(void) { return kernels_for(0)->name; }

std::int32_t fedtiny_lanes(void) { return static_cast<std::int32_t>(kernels_for(0)->lanes); }

int fedtiny_create(const fedtiny_node* nodes, std::int32_t count, fedtiny_network** network) {
  return guarded([&] {
    given(network, "place for the network") = nullptr;
    auto made = std::make_unique<fedtiny_network>();
    made->nodes = checked_nodes(nodes, count);
    *network = made.release();
  });
}

void fedtiny_destroy(fedtiny_network* network) { delete network; }

int fedtiny_size(const fedtiny_network* network, std::int32_t node, std::int32_t parameter,
                 std::int64_t* size) {
  return guarded([&] {
    given(size, "place for the size") =
        parameter_size(given(network, "network").nodes, node, parameter);
  });
}

int fedtiny_plan(const fedtiny_network* network, const fedtiny_options* options,
                 const std::int64_t* kept, fedtiny_memory* memory) {
  return guarded([&] {
    const Nodes& nodes = given(network, "network").nodes;
    const Options checked = checked_options(given(options, "options"), true);
    given(memory, "place for the plan") = planned_memory(nodes, checked, checked_kept(nodes, kept));
  });
}

int fedtiny_prepare(fedtiny_network* network, const fedtiny_options* options,
                    const std::int64_t* kept, const std::int32_t* const* positions) {
  return guarded([&] {
    const Options checked = checked_options(given(options, "options"));
    const Nodes& nodes = given(network, "network").nodes;
    const Table<Index> counts = checked_kept(nodes, kept);
    for (const Node& node : nodes) {
      const bool some = counts[node.place] > 0 && counts[node.place] < node.weights();
      if (some && (positions == nullptr || positions[node.owner()] == nullptr))
        refuse("node " + std::to_string(node.place) + " has no positions of its kept weights");
    }
    network->executor.reset();
    network->storage.reset();  // its memory goes back first
    network->storage = std::make_unique<Storage>(nodes, checked, counts, positions);
    network->executor = std::make_unique<Executor>(*network->storage);
  });
}

int fedtiny_taken(const fedtiny_network* network, fedtiny_memory* memory) {
  return guarded(
      [&] { given(memory, "place for the memory") = prepared(network).storage->memory; });
}

int fedtiny_set(fedtiny_network* network, std::int32_t node, std::int32_t parameter,
                const float* values, std::int64_t count) {
  return guarded([&] {
    if (count != 0) given(values, "value");
    prepared(network).storage->set(node, parameter, values, count);
  });
}

int fedtiny_get(const fedtiny_network* network, std::int32_t node, std::int32_t parameter,
                double* values, std::int64_t count) {
  return guarded([&] {
    if (count != 0) given(values, "place for values");
    prepared(network).storage->get(node, parameter, values, count);
  });
}

int fedtiny_get_gradient(const fedtiny_network* network, std::int32_t node, std::int32_t parameter,
                         float* values, std::int64_t count) {
  return guarded([&] {
    if (count != 0) given(values, "place for values");
    prepared(network).storage->get_gradient(node, parameter, values, count);
  });
}

int fedtiny_get_input_gradient(const fedtiny_network* network, float* values, std::int64_t count) {
  return guarded([&] {
    given(values, "place for values");
    prepared(network).executor->get_input_gradient(values, count);
  });
}

int fedtiny_start(fedtiny_network* network, const fedtiny_rates* rates) {
  return guarded([&] { start_optimizer(*prepared(network).storage, given(rates, "rates")); });
}

int fedtiny_run(fedtiny_network* network, const fedtiny_pass* pass, fedtiny_score* score) {
  return guarded([&] {
    const fedtiny_score found = prepared(network).executor->run(given(pass, "pass"));
    if (pass->labels != nullptr) given(score, "place for the score") = found;
  });
}

}  // extern "C"
