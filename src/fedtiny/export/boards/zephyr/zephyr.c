/* A board of Zephyr: samples from the console's UART, results to it. */
#include "board.h"

#include <zephyr/device.h>
#include <zephyr/drivers/uart.h>
#include <zephyr/kernel.h>

#include <stdio.h>

static const struct device *const console = DEVICE_DT_GET(DT_CHOSEN(zephyr_console));
static uint32_t first;

size_t board_read(void *to, size_t size)
{
    unsigned char *bytes = to;
    for (size_t got = 0; got < size;)
        if (uart_poll_in(console, &bytes[got]) == 0)
            ++got;
    return size;
}

void board_write(const char *text)
{
    for (; *text != '\0'; ++text)
        uart_poll_out(console, (unsigned char)*text);
}

uint32_t board_ticks(void)
{
    return k_cycle_get_32();
}

void board_before(void)
{
    first = board_ticks();
}

void board_after(void)
{
    const uint32_t taken = board_ticks() - first;
    char text[32];
    (void)snprintf(text, sizeof text, "cycles %lu\n", (unsigned long)taken);
    board_write(text);
}

int main(void)
{
    return classify_all();
}
