/* Give the class of measured values and, in `logits`, a number for each class. The values are
   MODEL_CHANNELS rows of MODEL_WIDTH floats; they are normalised as in training. */
int model_run_raw(const float *values, float *logits);
