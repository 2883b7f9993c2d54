package dev.chagres.bindings;

import dev.chagres.bindings.te.TransformerEngine;
import java.lang.foreign.AddressLayout;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.GroupLayout;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;

/**
 * Calls each guarded function of Transformer Engine once with arguments that make no sense, and prints a line before and
 * after each call: when the process dies, the last line names the function.
 */
final class CallEverything {

    /** The functions of the guard itself: they have tests of their own. */
    static final Set<String> OWN = Set.of("te_open", "te_last_error", "te_has", "te_set_environment");

    private static final long MEMORY_SIZE = 1 << 20;

    private CallEverything() {}

    /** Each argument is {@code POINTER,NUMBER}: what all pointers and handles are, and what all numbers are. */
    public static void main(String[] arguments) {
        NativeLibraries.ensureLoaded();
        for (String argument : arguments) {
            String[] words = argument.split(",", 2);
            System.out.println("arguments " + argument);
            callAll(pointer(words[0]), Long.parseLong(words[1]));
        }
    }

    private static MemorySegment pointer(String word) {
        return switch (word) {
            case "null" -> MemorySegment.NULL;
            case "memory" -> Arena.global().allocate(MEMORY_SIZE, 4096);
            default -> MemorySegment.ofAddress(Long.decode(word));
        };
    }

    private static void callAll(MemorySegment pointer, long number) {
        for (String function : functions()) {
            System.out.println("call " + function);
            int status = call(function, pointer, number);
            String text = TransformerEngine.te_last_error().getString(0).replace('\n', ' ');
            System.out.println("status " + function + " " + status + " " + (status == 0 ? "" : text));
        }
    }

    static List<String> functions() {
        return Bindings.TE.functions().stream()
                .filter(name -> !OWN.contains(name))
                .toList();
    }

    private static int call(String function, MemorySegment pointer, long number) {
        FunctionDescriptor descriptor = Bindings.TE.descriptor(function);
        List<Object> values = new ArrayList<>();
        for (MemoryLayout layout : descriptor.argumentLayouts()) {
            values.add(value(layout, pointer, number));
        }
        try {
            return (int) Bindings.TE.handle(function).invokeWithArguments(values);
        } catch (Throwable thrown) {
            throw new AssertionError(function + " threw into Java", thrown);
        }
    }

    private static Object value(MemoryLayout layout, MemorySegment pointer, long number) {
        return switch (layout) {
            case AddressLayout _ -> pointer;
            case ValueLayout.OfInt _ -> (int) number;
            case ValueLayout.OfLong _ -> number;
            case ValueLayout.OfFloat _ -> number < 0 ? Float.NaN : (float) number;
            case ValueLayout.OfDouble _ -> number < 0 ? Double.NaN : (double) number;
            case ValueLayout.OfByte _ -> (byte) number;
            case ValueLayout.OfBoolean _ -> number != 0;
            case GroupLayout group -> Arena.global().allocate(group).fill((byte) number);
            default -> throw new AssertionError("no value for " + layout);
        };
    }
}
