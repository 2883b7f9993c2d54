package dev.chagres.te;

import dev.chagres.conformance.OpenDevice;
import java.nio.file.Path;

/**
 * Writes what this process's provider computes by every FP8 function that runs on Hopper, for a process with the other provider.
 *
 * <pre>WriteBytes FILE</pre>
 */
final class WriteBytes {
    private WriteBytes() {}

    /** Writes the file. */
    public static void main(String... arguments) {
        Path file = Path.of(arguments[0]);
        OpenDevice open = new OpenDevice();
        open.open();
        try {
            ComputedBytes computed = ComputedBytes.compute(open);
            computed.failures().forEach((name, text) -> System.out.println("refused: " + name + ": " + text));
            BytesFile.write(file, BytesFile.bytes(computed));
            System.out.println(computed.parts().size() + " tensors are in " + file);
        } finally {
            open.close();
        }
    }
}
