// What the program has taken, and the most that it may: `operator new` counts, and refuses by
// std::bad_alloc what would be too much.
#pragma once
#include <cstddef>

namespace fedtiny::device::memory {

void set_limit(std::size_t bytes);  // 0 for none
std::size_t limit();
// Taken by `operator new`, and beside it by the native library.
std::size_t held();
void set_arena(std::size_t bytes);
std::size_t arena();
// What can still be taken, counted without the arena.
std::size_t room_beside_arena();
std::size_t peak();
void forget_peak();

}  // namespace fedtiny::device::memory
