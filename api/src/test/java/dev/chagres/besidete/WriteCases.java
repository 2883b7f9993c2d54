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
import java.util.Locale;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.TreeMap;

/**
 * Computes drawn cases on {@link Device#open}'s device and writes each with its results, for {@code compare_with_te.py}.
 *
 * <pre>WriteCases layers|options|steps FOLDER SEED FIRST COUNT [STRIDE]</pre>
 *
 * writes the cases FIRST, FIRST + STRIDE … below COUNT: several processes can share the work.
 */
final class WriteCases {
    private WriteCases() {}

    /** What cases are drawn of. */
    enum Kind {
        /** Layers, half of them in BF16. */
        LAYERS {
            private static final Precision[] PRECISIONS = {
                Precision.BF16,
                Precision.FP8_DELAYED,
                Precision.BF16,
                Precision.FP8_CURRENT,
                Precision.BF16,
                Precision.FP8_BLOCK
            };

            @Override
            DrawnCase draw(int number, SplittableRandom random) {
                return LayerCases.draw(PRECISIONS[number % PRECISIONS.length], random);
            }
        },
        /** One option after the other that layers, losses and optimizers have besides: first those of layers, then what is no layer. */
        OPTIONS {
            @Override
            DrawnCase draw(int number, SplittableRandom random) {
                OptionKind[] layers = OptionKind.values();
                int turn = number / OPTION_KINDS;
                int kind = number % OPTION_KINDS;
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
        },
        /** Layers over several steps: two of three trained by AdamW, in BF16 and by each recipe; then gradients that jump. */
        STEPS {
            private static final Precision[] PRECISIONS = {
                Precision.FP8_DELAYED, Precision.FP8_CURRENT, Precision.FP8_BLOCK
            };

            @Override
            DrawnCase draw(int number, SplittableRandom random) {
                int turn = number / 3;
                return switch (number % 3) {
                    case 0 -> new OptionCases(Precision.BF16, random).trained();
                    case 1 -> new OptionCases(PRECISIONS[turn % PRECISIONS.length], random).trained();
                    default -> new OptionCases(Precision.FP8_DELAYED, random).jumping();
                };
            }
        };

        abstract DrawnCase draw(int number, SplittableRandom random);
    }

    /** Kinds of {@link Kind#OPTIONS}, which take turns. */
    static final int OPTION_KINDS = OptionKind.values().length + 11;

    /** Writes the cases. */
    public static void main(String... arguments) throws IOException {
        Kind kind = Kind.valueOf(arguments[0].toUpperCase(Locale.ROOT));
        Path folder = Files.createDirectories(Path.of(arguments[1]));
        long seed = Long.parseLong(arguments[2]);
        int first = Integer.parseInt(arguments[3]);
        int count = Integer.parseInt(arguments[4]);
        int stride = arguments.length > 5 ? Integer.parseInt(arguments[5]) : 1;
        Map<String, Integer> options = new TreeMap<>();
        try (Device device = Device.open()) {
            for (int number = first; number < count; number += stride) {
                DrawnCase drawn = kind.draw(number, new SplittableRandom(seed + number));
                drawn.write(device, folder.resolve("%04d.safetensors".formatted(number)));
                drawn.options().forEach(option -> options.merge(option, 1, Integer::sum));
            }
        }
        options.forEach((option, cases) -> System.out.println("  " + option + ": " + cases));
        System.out.println("cases " + first + " of " + count + " by " + stride + " are written");
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
