/* What a step does in one band: rows are counted from the first that is held. */
typedef struct {
    int16_t rows, given; /* how many it gives, from which on */
    int16_t read, rows_read, above; /* what it reads; a first window has rows above that */
    int16_t added;
    int16_t dropped, zeros; /* rows that are not needed any more, rows of padding that are */
} Band;

/* The rows that a step reads, adds and gives in a band. */
typedef struct {
    Tensor read, added, given;
    int above;
} Rows;

static Tensor rows_of(const Tensor *tensor, int first, int rows)
{
    Tensor found = *tensor;
    found.origin += first * tensor->pitch;
    found.rows = rows;
    return found;
}

/* Some at a time, which is much faster than the memmove of a small library. */
static void move_up(float *to, const float *from, int count)
{
    float some[8];
    for (; count >= 8; count -= 8, to += 8, from += 8) {
        memcpy(some, from, sizeof some);
        memcpy(to, some, sizeof some);
    }
    for (; count > 0; --count)
        *to++ = *from++;
}

/* Every plane has `held` rows; its first are dropped, and zeros come behind the last. */
static void roll(const Tensor *tensor, const Band *band, int held, float zero)
{
    const int planes = tensor->channels * (tensor->plane / (held * tensor->pitch));
    const int dropped = band->dropped * tensor->pitch, zeros = band->zeros * tensor->pitch;
    const int left = held * tensor->pitch - dropped;
    float *plane = tensor->values + tensor->origin;
    for (int i = 0; i < planes; ++i, plane += left + dropped) {
        float *end = plane + (band->given + band->rows) * tensor->pitch;
        if (dropped > 0)
            move_up(plane, plane + dropped, left);
        for (int j = 0; j < zeros; ++j)
            end[j] = zero;
    }
}

/* Whether a step gives rows in a band; `held` is 0 for a value that is there with all rows. */
static int open_band(const Band *band, const Tensor *read, const Tensor *added,
                     const Tensor *given, int held, float zero, Rows *rows)
{
    if (band->dropped > 0 || band->zeros > 0)
        roll(given, band, held, zero);
    rows->read = rows_of(read, band->read, band->rows_read);
    rows->added = rows_of(added ? added : read, band->added, band->rows);
    rows->given = rows_of(given, band->given, band->rows);
    rows->above = band->above;
    return band->rows > 0;
}
