package dev.chagres.besidete;

import dev.chagres.Device;
import dev.chagres.besidete.LayerCase.Precision;
import dev.chagres.besidete.NormOutputCase.Module;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.SplittableRandom;

/**
 * Writes cases as {@link WriteLayerCases} does, each drawn for one of the options that layers, losses and optimizers have besides.
 *
 * <pre>WriteOptionCases FOLDER SEED FIRST COUNT [STRIDE]</pre>
 */
final class WriteOptionCases {
    /** Kinds of cases that are no layers. */
    private static final int OTHERS = 11;
    /** Kinds of cases in all. */
    static final int KINDS = OptionKind.values().length + OTHERS;

    private WriteOptionCases() {}

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
                Path file = folder.resolve("%04d.safetensors".formatted(number));
                DrawnCase drawn = draw(number, new SplittableRandom(seed + number));
                drawn.write(device, file);
                tally.add(drawn.options());
            }
        }
        System.out.print(tally);
        System.out.println("cases " + first + " of " + count + " by " + stride + " are written");
    }

    /** Kinds take turns: those of layers, and then what is no layer. */
    static DrawnCase draw(int number, SplittableRandom random) {
        OptionKind[] layers = OptionKind.values();
        int turn = number / KINDS;
        int kind = number % KINDS;
        return switch (kind - layers.length) {
            case 0 -> NormOutputCase.draw(Module.LINEAR, turn, random);
            case 1 -> NormOutputCase.draw(Module.MLP, turn, random);
            case 2 -> LossCase.draw(turn, random);
            case 3 -> AdamCase.draw(2 * turn, random);
            case 4 -> AdamCase.draw(2 * turn + 1, random);
            case 5 -> StartsCase.draw(2 * turn, random);
            case 6 -> StartsCase.draw(2 * turn + 1, random);
            case 7, 8, 9, 10 -> overriding(kind - layers.length - 7, random);
            default -> layers[kind].draw(turn, random);
        };
    }

    private static DrawnCase overriding(int kind, SplittableRandom random) {
        BackwardOverride override = kind % 2 == 0 ? BackwardOverride.HIGH_PRECISION : BackwardOverride.DEQUANTIZED;
        return kind < 2
                ? NormOutputCase.draw(
                        Precision.FP8_CURRENT, Float8CurrentScaling.standard().withBackwardOverride(override), random)
                : NormOutputCase.draw(
                        Precision.FP8_BLOCK, Float8BlockScaling.standard().withBackwardOverride(override), random);
    }
}
