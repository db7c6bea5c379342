/* Give the class of measured values and, in `logits`, a number for each class. The values are
   MODEL_CHANNELS rows of MODEL_WIDTH floats; they are normalized as in training. */
int model_run_raw(const float *values, float *logits);

/* The same for values that are normalized already. */
int model_run_values(const float *values, float *logits);

/* The same for an image of one row, MODEL_CHANNELS of MODEL_WIDTH bytes, each a 255th of its value. */
int model_run(const uint8_t *image, float *logits);
