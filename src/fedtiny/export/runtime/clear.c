/* Zeros everywhere, so that those around the planes are there. */
static void clear(const Tensor *tensor, size_t size)
{
    memset(tensor->values, 0, size * sizeof(float));
}
