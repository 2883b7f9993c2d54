package dev.chagres.sharding;

import dev.chagres.DType;
import dev.chagres.internal.Checks;

/**
 * How {@link DataParallel} sums gradients.
 *
 * <p>Threading: immutable.
 *
 * @param bucketBytes neighbouring groups are put into one bucket until it has this many bytes of FP32 gradients; at least 1
 * @param reduceType in which gradients are sent and summed over ranks: FLOAT32, BFLOAT16 or FLOAT16. Each rank's own gradients, and sums of
 *     micro-batches, stay FP32. With 16 bits half as many bytes are sent, and each rank's gradient and each sum is rounded to 16 bits
 */
public record DataParallelConfig(long bucketBytes, DType reduceType) {
    /** With this many bytes a collective reaches the bandwidth of NVLink. */
    private static final long BUCKET_BYTES = 32L << 20;

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the size is below 1, or gradients cannot be summed in the type
     */
    public DataParallelConfig {
        Checks.atLeastOne("bucketBytes", bucketBytes);
        GradientCasts.checked(reduceType);
    }

    /** Returns buckets of 32 MiB, summed in FP32. */
    public static DataParallelConfig standard() {
        return new DataParallelConfig(BUCKET_BYTES, DType.FLOAT32);
    }

    /**
     * Returns the same with buckets of another size.
     *
     * @throws IllegalArgumentException when it is below 1
     */
    public DataParallelConfig withBucketBytes(long newBucketBytes) {
        return new DataParallelConfig(newBucketBytes, reduceType);
    }

    /**
     * Returns the same with gradients summed in another type.
     *
     * <p>Source: {@code reduce_dtype} of PyTorch's {@code MixedPrecision}; {@code bf16_compress_hook}.
     *
     * @throws IllegalArgumentException when it is not FLOAT32, BFLOAT16 or FLOAT16
     */
    public DataParallelConfig withReduceType(DType newReduceType) {
        return new DataParallelConfig(bucketBytes, newReduceType);
    }
}
