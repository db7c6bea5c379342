/* The integer that stands for 0 everywhere, so that it is there around the planes. */
static void clear(const Tensor *tensor, size_t size, int zero)
{
    memset(tensor->values, zero, size);
}
