/* A desktop as a board: samples from the standard input, results to the standard output. */
#include "board.h"

#include <stdio.h>
#include <time.h>

size_t board_read(void *to, size_t size)
{
    return fread(to, 1, size, stdin);
}

void board_write(const char *text)
{
    (void)fputs(text, stdout);
}

uint32_t board_ticks(void)
{
    return (uint32_t)clock();
}

void board_before(void)
{
}

void board_after(void)
{
}

int main(void)
{
    return classify_all();
}
