/* A tensor in the arena: the pixel at (channel, row, column) is
   values[origin + channel * plane + row * pitch + column].
   Convolutions read beyond the edges of a plane; the zeros that they find there are shared by
   neighboring rows and planes. */
typedef struct {
    float *values;
    int channels, rows, columns;
    int pitch, plane, origin;
} Tensor;

static float *row_of(const Tensor *tensor, int channel, int row)
{
    return tensor->values + tensor->origin + channel * tensor->plane + row * tensor->pitch;
}
