/* A bare Cortex-M: vectors, start, semihosting for input and output, and what a sample takes.

   Semihosting is served by QEMU and by debuggers. To read from a UART or a camera instead, change
   board_read and board_write. */
#include "board.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define SYSTICK ((volatile uint32_t *)0xE000E010u) /* control, reload, current */
#define ACCESS_CONTROL ((volatile uint32_t *)0xE000ED88u)
#define LARGEST_TICK 0xFFFFFFu
#define PAINT 0xA5A5A5A5u

/* Of the linker script. */
extern uint32_t stack_low[], stack_top[], data_start[], data_end[], data_load[], bss_start[],
    bss_end[];

enum { SYS_OPEN = 1, SYS_WRITE = 5, SYS_READ = 6, SYS_EXIT = 0x18 };
enum { FOR_INPUT = 1, FOR_OUTPUT = 5, FOR_ERRORS = 9 }; /* modes rb, wb and ab of the console */
#define EXIT_WELL 0x20026u
#define EXIT_BADLY 0x20023u

static volatile uint32_t wraps;
static uint32_t first_tick, *first_stack;
static int input, output, errors;

static int semihosting(int operation, uintptr_t argument)
{
    register int r0 __asm__("r0") = operation;
    register uintptr_t r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static int opened(uintptr_t mode)
{
    const uintptr_t arguments[3] = {(uintptr_t)":tt", mode, 3};
    return semihosting(SYS_OPEN, (uintptr_t)arguments);
}

static void print(int to, const char *text)
{
    const uintptr_t arguments[3] = {(uintptr_t)to, (uintptr_t)text, strlen(text)};
    (void)semihosting(SYS_WRITE, (uintptr_t)arguments);
}

size_t board_read(void *to, size_t size)
{
    size_t got = 0;
    while (got < size) {
        const uintptr_t arguments[3] = {(uintptr_t)input, (uintptr_t)to + got, size - got};
        const size_t left = (size_t)semihosting(SYS_READ, (uintptr_t)arguments);
        if (left >= size - got) /* the end, or an error */
            break;
        got = size - left;
    }
    return got;
}

void board_write(const char *text)
{
    print(output, text);
}

/* Ticks of the processor's clock since the start. */
uint32_t board_ticks(void)
{
    uint32_t high, low;
    do {
        high = wraps;
        low = LARGEST_TICK - SYSTICK[2];
    } while (high != wraps);
    return (high << 24) + low;
}

static void count_wrap(void)
{
    ++wraps;
}

void board_before(void)
{
    __asm__ volatile("mov %0, sp" : "=r"(first_stack));
    for (uint32_t *at = stack_low; at < first_stack - 16; ++at)
        *(volatile uint32_t *)at = PAINT;
    first_tick = board_ticks();
}

void board_after(void)
{
    const uint32_t taken = board_ticks() - first_tick;
    const uint32_t *at = stack_low;
    char text[64];
    while (at < first_stack && *at == PAINT)
        ++at;
    (void)snprintf(text, sizeof text, "ticks %lu stack %lu\n", (unsigned long)taken,
                   (unsigned long)((uintptr_t)first_stack - (uintptr_t)at));
    print(errors, text);
}

static void leave(uint32_t how)
{
    (void)semihosting(SYS_EXIT, how);
    for (;;) {
    }
}

static void fault(void)
{
    print(errors, "fault\n");
    leave(EXIT_BADLY);
}

void reset(void);

void reset(void)
{
    const uint32_t *from = data_load;
#ifdef __ARM_FP
    *ACCESS_CONTROL |= 0xFu << 20; /* the floating-point unit */
    __asm__ volatile("dsb\n\tisb");
#endif
    for (uint32_t *to = data_start; to < data_end; ++to)
        *to = *from++;
    for (uint32_t *to = bss_start; to < bss_end; ++to)
        *to = 0;
    SYSTICK[1] = LARGEST_TICK;
    SYSTICK[2] = 0;
    SYSTICK[0] = 7; /* on, with an interrupt, by the processor's clock */
    input = opened(FOR_INPUT);
    output = opened(FOR_OUTPUT);
    errors = opened(FOR_ERRORS);
    leave(classify_all() == 0 ? EXIT_WELL : EXIT_BADLY);
}

typedef struct {
    uint32_t *stack;
    void (*handlers[15])(void);
} Vectors;

__attribute__((section(".vectors"), used)) static const Vectors vectors = {
    stack_top,
    {reset, fault, fault, fault, fault, fault, NULL, NULL, NULL, NULL, fault, fault, NULL, fault,
     count_wrap},
};
