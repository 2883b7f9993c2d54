package dev.chagres.te;

import dev.chagres.DType;
import dev.chagres.te.ComputedBytes.Part;
import dev.chagres.witness.Float8Witness;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/** Compares what this provider computed with the bytes of another, each part by its {@link ByteRule}: one line a function. */
final class ByteComparison {
    private static final int SHOWN = 60;

    private final Map<String, Line> lines = new LinkedHashMap<>();
    private final List<String> failures = new ArrayList<>();

    /** What was found of one function. */
    private static final class Line {
        private long bytes;
        private long equal;
        private long rounded;
        private long roundedEqual;
        private int largestStep;
        private double largestNorm;

        @Override
        public String toString() {
            String text = String.format(
                    Locale.ROOT, "%,9d bytes, %8.4f %% equal", bytes, bytes == 0 ? 100 : 100.0 * equal / bytes);
            text += rounded == 0
                    ? ""
                    : String.format(
                            Locale.ROOT,
                            "; FP8 %8.4f %% equal, largest step %d",
                            100.0 * roundedEqual / rounded,
                            largestStep);
            return largestNorm == 0 ? text : text + String.format(Locale.ROOT, "; %.1e apart in norm", largestNorm);
        }
    }

    ByteComparison(ComputedBytes computed, Map<String, byte[]> others) {
        computed.failures().forEach((name, text) -> failures.add(name + ": refused here: " + text));
        Set<String> unread = new HashSet<>(others.keySet());
        computed.parts().forEach((name, part) -> {
            byte[] other = others.get(name);
            unread.remove(name);
            if (other == null || other.length != part.bytes().length) {
                failures.add(name + ": expected " + part.bytes().length + " bytes in the file, got "
                        + (other == null ? "none" : Integer.toString(other.length)));
            } else {
                compare(name, part, other);
            }
        });
        unread.forEach(name -> failures.add(name + ": is in the file, but was not computed here"));
        lines.forEach((name, line) -> {
            if (line.roundedEqual < ByteRule.SHARE * line.rounded) {
                failures.add(name + ": expected 99.9 % of the FP8 numbers equal, got " + line);
            }
        });
    }

    private void compare(String name, Part part, byte[] other) {
        Line line = lines.computeIfAbsent(part.function(), none -> new Line());
        byte[] own = part.bytes();
        line.bytes += own.length;
        long equal = 0;
        int first = -1;
        for (int i = 0; i < own.length; i++) {
            if (own[i] == other[i]) {
                equal++;
            } else if (first < 0) {
                first = i;
            }
        }
        line.equal += equal;
        switch (part.rule()) {
            case EXACT -> {
                if (equal != own.length) {
                    failures.add(String.format(
                            "%s: expected equal bytes, got %d of %d that differ, the first at %d: %02x here, %02x there",
                            name, own.length - equal, own.length, first, own[first], other[first]));
                }
            }
            case ROUNDED -> {
                line.rounded += own.length;
                line.roundedEqual += equal;
                int step = largestStep(own, other);
                line.largestStep = Math.max(line.largestStep, step);
                if (step > 1) {
                    failures.add(name + ": expected FP8 numbers at most one step apart, got " + step);
                }
            }
            case COMPUTED, SUMMED -> {
                double apart = apart(values(own, part.dtype()), values(other, part.dtype()));
                line.largestNorm = Math.max(line.largestNorm, apart);
                if (!(apart <= part.rule().norm())) {
                    failures.add(name + ": expected at most " + part.rule().norm() + " apart in norm, got " + apart);
                }
            }
        }
    }

    private static int largestStep(byte[] own, byte[] other) {
        int largest = 0;
        for (int i = 0; i < own.length; i++) {
            largest = Math.max(largest, Math.abs(order(own[i]) - order(other[i])));
        }
        return largest;
    }

    /** Returns the place of an FP8 number among all: neighbours are one apart, 0 and -0 the same. */
    private static int order(byte bits) {
        int magnitude = bits & 0x7f;
        return bits < 0 ? -magnitude : magnitude;
    }

    private static double[] values(byte[] bytes, DType dtype) {
        if (dtype.isFloat8()) {
            return Float8Witness.values(bytes, dtype);
        }
        ByteBuffer buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
        double[] values = new double[bytes.length / dtype.byteSize()];
        Arrays.setAll(values, i -> switch (dtype) {
            case FLOAT32 -> buffer.getFloat(4 * i);
            case FLOAT16 -> Float.float16ToFloat(buffer.getShort(2 * i));
            case BFLOAT16 -> Float.intBitsToFloat(buffer.getShort(2 * i) << 16);
            default -> throw new IllegalStateException("no numbers of " + dtype);
        });
        return values;
    }

    /** Returns the norm of the difference in parts of that of the other's; NaN where a number is not finite. */
    private static double apart(double[] own, double[] other) {
        double difference = 0;
        double all = 0;
        for (int i = 0; i < own.length; i++) {
            difference += (own[i] - other[i]) * (own[i] - other[i]);
            all += other[i] * other[i];
        }
        return difference == 0 ? 0 : Math.sqrt(difference / all);
    }

    /** Returns what must not be; empty where the two providers agree. */
    List<String> failures() {
        return failures;
    }

    /** Returns a line a function, and the failures. */
    String report() {
        StringBuilder text = new StringBuilder();
        lines.forEach((name, line) -> text.append(String.format("%-" + SHOWN + "s %s%n", name, line)));
        failures.forEach(failure -> text.append("DIFFERS ").append(failure).append(System.lineSeparator()));
        return text.toString();
    }
}
