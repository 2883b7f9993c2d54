package dev.chagres.besidete;

import dev.chagres.Device;
import dev.chagres.besidete.LayerCase.Precision;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.SplittableRandom;

/**
 * Draws layers, computes forward and backward, and writes a safetensors file each, with weights, inputs and results, for {@code
 * compare_with_te.py}.
 *
 * <pre>WriteLayerCases FOLDER SEED FIRST COUNT [STRIDE]</pre>
 *
 * writes the cases FIRST, FIRST + STRIDE … below COUNT: several processes can share the work.
 */
final class WriteLayerCases {
    /** Half of the cases are BF16. */
    private static final Precision[] PRECISIONS = {
        Precision.BF16,
        Precision.FP8_DELAYED,
        Precision.BF16,
        Precision.FP8_CURRENT,
        Precision.BF16,
        Precision.FP8_BLOCK
    };

    private WriteLayerCases() {}

    /** Writes the cases. */
    public static void main(String... arguments) throws IOException {
        Path folder = Files.createDirectories(Path.of(arguments[0]));
        long seed = Long.parseLong(arguments[1]);
        int first = Integer.parseInt(arguments[2]);
        int count = Integer.parseInt(arguments[3]);
        int stride = arguments.length > 4 ? Integer.parseInt(arguments[4]) : 1;
        OptionTally tally = new OptionTally();
        try (Device device = Device.open()) {
            for (int number = first; number < count; number += stride) {
                LayerCase drawn =
                        LayerCases.draw(PRECISIONS[number % PRECISIONS.length], new SplittableRandom(seed + number));
                drawn.write(device, folder.resolve("%04d.safetensors".formatted(number)));
                tally.add(drawn.options());
            }
        }
        System.out.print(tally);
        System.out.println("cases " + first + " of " + count + " by " + stride + " are written");
    }
}
