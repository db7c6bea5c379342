// fedtiny-device as firmware of a bare Cortex-M7: its data in flash, its stream over a UART. The
// addresses are those of ARM's MPS2 board with AN500, which QEMU has; cortex_m7.ld has its memory.
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "device.h"
#include "memory.h"

#ifndef FEDTINY_UART
#define FEDTINY_UART 0x40004000u /* CMSDK's UART 0 */
#endif
#ifndef FEDTINY_CLOCK
#define FEDTINY_CLOCK 25000000u /* ticks of the processor in a second */
#endif

extern "C" {

// Of the linker script and of the object that holds the data file.
extern std::uint32_t stack_top[], data_start[], data_end[], data_load[], bss_start[], bss_end[];
extern char heap_start[], heap_end[];
extern const char device_data_start[], device_data_end[];

void __libc_init_array(void);
void _init(void) {}
void _fini(void) {}
void* __dso_handle = nullptr;

[[noreturn]] void _exit(int) {
  for (;;) __asm__ volatile("wfi");
}

// All memory that is taken comes from here.
void* _sbrk(std::ptrdiff_t more) {
  static char* end = heap_start;
  if (more > heap_end - end) {
    errno = ENOMEM;
    return reinterpret_cast<void*>(-1);
  }
  char* was = end;
  end += more;
  return was;
}

// What newlib wants to be there; nothing is printed or read by it.
int _close(int) { return -1; }
int _fstat(int, void*) { return -1; }
int _isatty(int) { return 1; }
int _lseek(int, int, int) { return -1; }
int _read(int, char*, int) { return -1; }
int _write(int, const char*, int count) { return count; }
int _getpid(void) { return 1; }
int _kill(int, int) { return -1; }

}  // extern "C"

namespace {

using namespace fedtiny::device;

// The processor's own timer, which flags every hundredth of a second.
class Timer {
 public:
  static constexpr int TICK = 10;  // milliseconds

  Timer() {
    registers()[RELOAD] = FEDTINY_CLOCK / 1000 * TICK - 1;
    registers()[CURRENT] = 0;
    registers()[CONTROL] = 5;  // on, by the processor's clock, without interrupts
  }

  // Whether a tick has passed since this was asked last.
  bool ticked() const { return (registers()[CONTROL] & FLAG) != 0; }

 private:
  enum { CONTROL = 0, RELOAD = 1, CURRENT = 2 };
  enum : std::uint32_t { FLAG = 1u << 16 };
  static volatile std::uint32_t* registers() {
    return reinterpret_cast<volatile std::uint32_t*>(0xE000E010u);
  }
};

class Uart : public Stream {
 public:
  Uart() {
    registers()[BAUD] = 16;  // the fastest
    registers()[CONTROL] = 3;
  }

  bool read(void* to, std::size_t size) override {
    for (auto* at = static_cast<std::uint8_t*>(to); size > 0; --size) {
      int silence = 0;
      while ((registers()[STATE] & RECEIVED) == 0) {
        if (timer_.ticked()) silence += Timer::TICK;
        if (hurried && silence > PATIENCE) return false;
      }
      *at++ = static_cast<std::uint8_t>(registers()[DATA]);
    }
    return true;
  }

  bool write(const void* from, std::size_t size) override {
    for (const auto* at = static_cast<const std::uint8_t*>(from); size > 0; --size) {
      while ((registers()[STATE] & FULL) != 0) {
      }
      registers()[DATA] = *at++;
    }
    return true;
  }

 private:
  Timer timer_;

  enum { DATA = 0, STATE = 1, CONTROL = 2, BAUD = 4 };
  enum : std::uint32_t { FULL = 1, RECEIVED = 2 };
  static volatile std::uint32_t* registers() {
    return reinterpret_cast<volatile std::uint32_t*>(FEDTINY_UART);
  }
};

void live() {
  Uart uart;
  memory::set_limit(static_cast<std::size_t>(heap_end - heap_start));
  const Data data(device_data_start,
                  static_cast<std::size_t>(device_data_end - device_data_start));
  Device device(data, FEDTINY_DEVICE_NAME);
  serve(uart, device, true);
}

void fault() {
  *reinterpret_cast<volatile std::uint32_t*>(0xE000ED0Cu) = 0x05FA0004u;  // start again
  for (;;) {
  }
}

extern "C" void reset() {
  *reinterpret_cast<volatile std::uint32_t*>(0xE000ED88u) |= 0xFu << 20;  // the FPU
  __asm__ volatile("dsb\n\tisb");
  const std::uint32_t* from = data_load;
  for (std::uint32_t* to = data_start; to < data_end; ++to) *to = *from++;
  for (std::uint32_t* to = bss_start; to < bss_end; ++to) *to = 0;
  __libc_init_array();
  try {
    live();
  } catch (...) {  // its data are no data of a device: nothing can be done
  }
  _exit(1);
}

struct Vectors {
  std::uint32_t* stack;
  void (*handlers[15])();
};

__attribute__((section(".vectors"), used)) const Vectors vectors = {
    stack_top,
    {reset, fault, fault, fault, fault, fault, nullptr, nullptr, nullptr, nullptr, fault, fault,
     nullptr, fault, fault},
};

}  // namespace
