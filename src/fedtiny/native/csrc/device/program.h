// A request's program, verb by verb: what devices/node.py does for the engine of this device.
#pragma once
#include "engine.h"

namespace fedtiny::device {

// Bytes that a request takes at most, with all that is held already.
std::int64_t planned_bytes(const Engine& engine, const Request& request);

StatisticsOrder statistics_order(const JsonView& verb);

Reply run_program(Engine& engine, const Request& request, std::int64_t device);

}  // namespace fedtiny::device
