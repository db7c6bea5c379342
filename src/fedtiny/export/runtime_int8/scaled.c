/* The integer part of a number times 2^32. Shifts of negative numbers keep the sign. */
static int32_t scaled(int64_t number)
{
    return (int32_t)(number >> 32);
}
