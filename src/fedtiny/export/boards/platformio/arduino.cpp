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

static unsigned long first;

void board_before(void)
{
    first = micros();
}

void board_after(void)
{
    Serial.print("microseconds ");
    Serial.println(micros() - first);
}

void setup()
{
    Serial.begin(115200);
}

void loop()
{
    classify_all();
}
