package dev.chagres.io;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.bindings.ForeignText;
import dev.chagres.internal.Checks;
import dev.chagres.internal.memory.HostMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.Objects;
import java.util.Optional;
import java.util.zip.CRC32C;
import org.jspecify.annotations.Nullable;

/**
 * One tensor of a {@link SafetensorsFile}; usable until that is closed.
 *
 * <p>Threading: thread-safe.
 */
public sealed class SafetensorsEntry permits RecodedState.Entry {
    /** Stays in a core's cache between reading and checking. */
    private static final long CHECKED_AT_A_TIME = 1 << 18;

    private final SafetensorsFile file;
    private final Header.Entry entry;
    /** Null in a file without checksums. */
    private final @Nullable String checksum;

    SafetensorsEntry(SafetensorsFile file, Header.Entry entry, @Nullable String checksum) {
        this.file = file;
        this.entry = entry;
        this.checksum = checksum;
    }

    /** Returns the name. */
    public String name() {
        return entry.name();
    }

    /** Returns the type of the elements as the file has it. */
    public SafetensorsType type() {
        return entry.type();
    }

    /** Returns a copy of the sizes, outermost first; a file may have more dimensions than a {@link Shape}. */
    public long[] sizes() {
        return entry.sizes().clone();
    }

    /** Returns the bytes of all elements. */
    public long byteSize() {
        return entry.end() - entry.begin();
    }

    /**
     * Returns the type of a tensor with these elements.
     *
     * @throws SafetensorsException when there is none, such as for BOOL
     */
    public DType dtype() {
        return entry.type()
                .dtype()
                .orElseThrow(() -> SafetensorsException.of(
                        file.path(),
                        name(),
                        "dtype: expected U8, I8, I16, I32, U32, I64, U64, F64, F32, F16 or BF16, got " + entry.type()
                                + ", which tensors here do not have; convert it first",
                        null));
    }

    /**
     * Returns the shape.
     *
     * @throws SafetensorsException when there are more than {@link Shape#MAX_RANK} dimensions
     */
    public Shape shape() {
        if (entry.sizes().length > Shape.MAX_RANK) {
            throw SafetensorsException.of(
                    file.path(),
                    name(),
                    "shape: expected at most " + Shape.MAX_RANK + " dimensions, got " + Arrays.toString(entry.sizes()),
                    null);
        }
        return Shape.of(entry.sizes());
    }

    /**
     * Reads all bytes and compares them with the checksum that {@link SafetensorsWriter#writeWithChecksums} has written. Does nothing in a
     * file without checksums. Loading a state does this first; call it before reading {@link #bytes} or pieces of a tensor.
     *
     * @throws IllegalStateException when the file is closed
     * @throws SafetensorsException when the tensor is damaged, or the file cannot be read
     */
    public void verify() {
        damage().ifPresent(damage -> {
            throw damage;
        });
    }

    /**
     * Compares some bytes with their checksums: in the folder of a checkpoint those of the blocks that they lie in, in a file all of the tensor.
     *
     * @throws IndexOutOfBoundsException when the tensor has not that many bytes from there on
     * @throws IllegalStateException when the file is closed
     * @throws SafetensorsException when the tensor is damaged there, or the file cannot be read
     */
    public void verify(long offset, long bytes) {
        Objects.checkFromIndexSize(offset, bytes, byteSize());
        damage(offset, bytes).ifPresent(damage -> {
            throw damage;
        });
    }

    /** Returns what {@link #verify(long, long)} throws. */
    Optional<SafetensorsException> damage(long offset, long bytes) {
        return checksum == null ? file.damage(entry, offset, bytes) : damage();
    }

    /** Returns what {@link #verify} throws. */
    Optional<SafetensorsException> damage() {
        if (checksum == null) {
            return file.damage(entry, 0, byteSize());
        }
        CRC32C checked = new CRC32C();
        try (Arena arena = Arena.ofConfined()) {
            MemorySegment memory = arena.allocate(Math.min(byteSize(), CHECKED_AT_A_TIME));
            for (long offset = 0; offset < byteSize(); offset += memory.byteSize()) {
                MemorySegment piece = memory.asSlice(0, Math.min(memory.byteSize(), byteSize() - offset));
                file.read(entry, offset, piece, checked);
            }
        } catch (SafetensorsException unreadable) {
            return Optional.of(unreadable);
        }
        return damage(checked);
    }

    private Optional<SafetensorsException> damage(CRC32C checked) {
        return Optional.ofNullable(checksum)
                .flatMap(expected -> Checksums.difference(expected, checked))
                .map(text -> SafetensorsException.of(file.path(), name(), text, null));
    }

    /**
     * Returns the mapped bytes, little-endian, row-major, read-only. They may begin at any address: read them
     * with unaligned layouts such as {@link java.lang.foreign.ValueLayout#JAVA_FLOAT_UNALIGNED}.
     *
     * <p>If another program truncates the file meanwhile, reading beyond its end throws {@link InternalError}; {@link
     * #copyTo(MemorySegment)} throws a {@link SafetensorsException} instead.
     *
     * @throws IllegalStateException when the file is closed
     */
    public MemorySegment bytes() {
        return file.bytes(entry);
    }

    /**
     * Copies all bytes into {@code target}, and then compares them with the tensor's checksum if the file has one.
     *
     * @param target memory of as many bytes, native or on the heap
     * @throws IllegalArgumentException when it has more or fewer bytes, or is read-only
     * @throws IllegalStateException when the file is closed
     * @throws SafetensorsException when the tensor is damaged, the file cannot be read, or has become shorter since it was opened
     */
    public void copyTo(MemorySegment target) {
        if (Checks.given("target", target).byteSize() != byteSize()) {
            throw new IllegalArgumentException(
                    "target: expected " + byteSize() + " bytes for " + this + ", got " + target.byteSize());
        }
        copyTo(0, target);
    }

    /**
     * Fills {@code target} with the bytes from {@code offset} on, to read a tensor piece by piece. Only a piece that is the whole tensor is
     * compared with its checksum: call {@link #verify} before.
     *
     * @param target memory, native or on the heap
     * @throws IndexOutOfBoundsException when the tensor has not that many bytes from there on
     * @throws IllegalArgumentException when the target is read-only
     * @throws IllegalStateException when the file is closed
     * @throws SafetensorsException when the file cannot be read, or has become shorter since it was opened
     */
    public void copyTo(long offset, MemorySegment target) {
        if (offset < 0 || offset > byteSize() - Checks.given("target", target).byteSize()) {
            throw new IndexOutOfBoundsException("offset: expected " + target.byteSize() + " bytes within the "
                    + byteSize() + " of " + this + ", got " + offset);
        }
        HostMemory.ensureWritable("target", target);
        if (target.byteSize() < byteSize()) {
            read(offset, target, null);
            return;
        }
        CRC32C checked = new CRC32C();
        read(offset, target, checked);
        damage(checked).ifPresent(damage -> {
            throw damage;
        });
    }

    /** Fills {@code target}, which has room for no more than there is, and updates {@code checked} by the bytes of the file. */
    void read(long offset, MemorySegment target, @Nullable CRC32C checked) {
        file.read(entry, offset, target, checked);
    }

    /**
     * Fills {@code target} with the tensor's bytes in {@code dtype} from {@code offset} on. Floating-point numbers are converted: a wider
     * type has the same numbers, a narrower one rounds to nearest even, and numbers beyond its range become infinity.
     *
     * @param dtype that of the file; if that is FLOAT32, BFLOAT16 or FLOAT16, any of these
     * @param offset in bytes of {@code dtype}
     * @param target memory, native or on the heap, of whole elements
     * @throws IndexOutOfBoundsException when the tensor has not that many elements from there on
     * @throws IllegalArgumentException when the type is another one, offset or target have no whole elements, or the target is
     *     read-only
     * @throws IllegalStateException when the file is closed
     * @throws SafetensorsException when the file cannot be read, or has become shorter since it was opened
     */
    public void copyTo(DType dtype, long offset, MemorySegment target) {
        if (entry.type().dtype().equals(Optional.of(Checks.given("dtype", dtype)))) {
            copyTo(offset, target);
            return;
        }
        if (!dtype.isFloat() || !dtype().isFloat()) {
            throw new IllegalArgumentException("dtype: expected that of " + this
                    + ", or FLOAT32, BFLOAT16 or FLOAT16 where it is another of these, got " + dtype);
        }
        int size = dtype.byteSize();
        long bytes = byteSize() / dtype().byteSize() * size;
        if (offset < 0 || offset > bytes - target.byteSize()) {
            throw new IndexOutOfBoundsException("offset: expected " + target.byteSize() + " bytes within the " + bytes
                    + " of " + this + " in " + dtype + ", got " + offset);
        }
        if (offset % size != 0 || target.byteSize() % size != 0) {
            throw new IllegalArgumentException("offset and target: expected whole elements of " + size + " bytes, got "
                    + target.byteSize() + " bytes from " + offset + " on");
        }
        HostMemory.ensureWritable("target", target);
        ConvertedFloats.read(this, dtype, offset, target);
    }

    /** Says what is wrong with the tensor. */
    SafetensorsException refused(String text) {
        return SafetensorsException.of(file.path(), name(), text, null);
    }

    /** Returns whether type and shape are those of {@code spec}. */
    boolean fits(TensorSpec spec) {
        return entry.type() == SafetensorsType.of(spec.dtype())
                && Arrays.equals(entry.sizes(), spec.shape().sizes());
    }

    /** Returns type and sizes as messages show them. */
    static String described(SafetensorsType type, long... sizes) {
        return type + Arrays.toString(sizes);
    }

    @Override
    public String toString() {
        return ForeignText.quoted(name()) + " " + described(entry.type(), entry.sizes());
    }
}
