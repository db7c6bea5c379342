#include "memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace fedtiny::device::memory {
namespace {

std::size_t most = 0, taken = 0, outside = 0, highest = 0;
constexpr std::size_t HEAD = alignof(std::max_align_t);  // before each block: its size

void* taken_block(std::size_t size) noexcept {
  if (size > SIZE_MAX - HEAD) return nullptr;
  if (most != 0 && (held() > most || size + HEAD > most - held())) return nullptr;
  auto* block = static_cast<char*>(std::malloc(size + HEAD));
  if (block == nullptr) return nullptr;
  *reinterpret_cast<std::size_t*>(block) = size;
  taken += size + HEAD;
  highest = std::max(highest, held());
  return block + HEAD;
}

void give_back(void* pointer) noexcept {
  if (pointer == nullptr) return;
  char* block = static_cast<char*>(pointer) - HEAD;
  taken -= *reinterpret_cast<std::size_t*>(block) + HEAD;
  std::free(block);
}

}  // namespace

void set_limit(std::size_t bytes) { most = bytes; }
std::size_t limit() { return most; }
std::size_t held() { return taken + outside; }
std::size_t arena() { return outside; }
std::size_t peak() { return highest; }
void forget_peak() { highest = held(); }

void set_arena(std::size_t bytes) {
  outside = bytes;
  highest = std::max(highest, held());
}

std::size_t room_beside_arena() {
  if (most == 0) return SIZE_MAX;
  return taken > most ? 0 : most - taken;
}

}  // namespace fedtiny::device::memory

using namespace fedtiny::device::memory;

void* operator new(std::size_t size) {
  void* block = taken_block(size);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return taken_block(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return taken_block(size); }
void operator delete(void* pointer) noexcept { give_back(pointer); }
void operator delete[](void* pointer) noexcept { give_back(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { give_back(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { give_back(pointer); }
void operator delete(void* pointer, const std::nothrow_t&) noexcept { give_back(pointer); }
void operator delete[](void* pointer, const std::nothrow_t&) noexcept { give_back(pointer); }
