// A board of the Arduino framework: samples from the serial port, results to it.
#include "board.h"

#include <Arduino.h>

size_t board_read(void *to, size_t size)
{
    size_t got = 0;
    while (got < size)
        got += Serial.readBytes(static_cast<char *>(to) + got, size - got);
    return got;
}

void board_write(const char *text)
{
    Serial.print(text);
}

uint32_t board_ticks(void)
{
    return static_cast<uint32_t>(micros());
}

static uint32_t first;

void board_before(void)
{
    first = board_ticks();
}

void board_after(void)
{
    Serial.print("microseconds ");
    Serial.println(board_ticks() - first);
}

void setup()
{
    Serial.begin(115200);
}

void loop()
{
    classify_all();
}
