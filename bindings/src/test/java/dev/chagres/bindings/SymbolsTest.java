package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Every function of every binding is in NVIDIA's libraries, or in ours. */
@VendorTest
class SymbolsTest {

    /** What upstream's headers declare: 312 guarded functions and the one that upstream exports without declaring. */
    private static final int GUARDED = 313;

    private static final Map<Bindings, Integer> COUNTS = Map.of(
            Bindings.TE, GUARDED + 4, Bindings.OPS, 67, Bindings.CUDA, 310, Bindings.NCCL, 41, Bindings.CUDNN, 220);

    /** Loads NVIDIA's libraries and prints, per binding, how many functions resolve and the name of each that does not. */
    static final class Resolve {
        public static void main(String[] arguments) {
            NativeLibraries.ensureLoaded();
            for (Bindings bindings : Bindings.values()) {
                int resolved = 0;
                for (String function : bindings.functions()) {
                    try {
                        resolved += bindings.address(function).address() != 0 ? 1 : 0;
                    } catch (AssertionError unresolved) {
                        System.out.println("unresolved " + bindings + " " + function + ": " + unresolved.getMessage());
                    }
                }
                System.out.println("resolved " + bindings + " " + resolved);
            }
        }
    }

    private static List<String> lines = List.of();

    @BeforeAll
    static void resolve() {
        lines = ForkedJvm.run(VendorFolder.options(), Resolve.class)
                .expectExit(0)
                .output()
                .lines()
                .toList();
    }

    @ParameterizedTest
    @EnumSource(Bindings.class)
    void everyFunctionAskedForIsGenerated(Bindings bindings) {
        assertEquals(bindings.asked("function"), bindings.functions());
        assertEquals(COUNTS.get(bindings), bindings.functions().size());
    }

    @ParameterizedTest
    @EnumSource(Bindings.class)
    void everyFunctionResolves(Bindings bindings) {
        List<String> unresolved = lines.stream()
                .filter(line -> line.startsWith("unresolved " + bindings + " "))
                .toList();
        assertEquals(List.of(), unresolved);
        assertTrue(lines.contains("resolved " + bindings + " " + COUNTS.get(bindings)), () -> String.join("\n", lines));
    }

    @Test
    void noBindingWasSkipped() {
        List<String> seen = new ArrayList<>();
        for (Bindings bindings : Bindings.values()) {
            lines.stream()
                    .filter(line -> line.startsWith("resolved " + bindings + " "))
                    .forEach(seen::add);
        }
        assertEquals(Bindings.values().length, seen.size(), seen.toString());
    }
}
