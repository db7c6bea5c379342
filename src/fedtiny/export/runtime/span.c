/* The part of an axis that one output of a pool reads. */
typedef struct {
    int begin, end;
} Span;
