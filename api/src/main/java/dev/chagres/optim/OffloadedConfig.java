package dev.chagres.optim;

import dev.chagres.DType;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.Parameters;
import java.util.List;

/**
 * Settings of an AdamW whose moments and masters lie in page-locked memory of the host: {@code 8 to 12 bytes} of each parameter less on the device.
 *
 * <p>A step divides the elements into chunks. While one is updated, the next one is copied to the device, and the one before back to the host, on
 * streams of their own. The first chunks of a step are on the device before it begins: they are copied while forward and backward run. Weights,
 * moments and masters have the bits that they have without this, and files are the same.
 *
 * <p>Steps cannot be captured in graphs.
 *
 * {@snippet file="dev/chagres/optim/OffloadedAdamTest.java" region="offload"}
 *
 * <p>Threading: immutable.
 *
 * <p>Source: Ren et al., ZeRO-Offload (2021), whose updates are the host's; here they are the device's.
 *
 * @param updates of the weights, with moments of FLOAT32 or BFLOAT16
 * @param chunk elements of a chunk, a multiple of 1,024; two of them are on the device
 */
public record OffloadedConfig(AdamW.Config updates, int chunk) implements OptimizerConfig {
    private static final int MULTIPLE = 1024;
    /** 160 to 384 MiB on the device for each of two chunks. */
    private static final int CHUNK = 32 << 20;

    /**
     * Checks both.
     *
     * @throws IllegalArgumentException when moments have eight bits, or the chunk is no positive multiple of 1,024
     */
    public OffloadedConfig {
        if (Checks.given("updates", updates).momentDType() == DType.BYTE) {
            throw new IllegalArgumentException(
                    "updates: expected moments of FLOAT32 or BFLOAT16 in the host's memory, got BYTE, whose scales are not"
                            + " streamed");
        }
        if (chunk < MULTIPLE || chunk % MULTIPLE != 0) {
            throw new IllegalArgumentException(
                    "chunk: expected a positive multiple of " + MULTIPLE + " elements, got " + chunk);
        }
    }

    /**
     * Settings with chunks of 32 Mi elements.
     *
     * @throws IllegalArgumentException when moments have eight bits
     */
    public OffloadedConfig(AdamW.Config updates) {
        this(updates, CHUNK);
    }

    @Override
    public AdamW make(Parameters parameters, List<ParameterGroup> groups) {
        return new AdamW(parameters, this, groups);
    }

    @Override
    public boolean isCapturable() {
        return false;
    }

    /** Returns this with other masters. */
    @Override
    public OffloadedConfig withMasters(AdamW.Masters masters) {
        return new OffloadedConfig(updates.withMasters(masters), chunk);
    }
}
