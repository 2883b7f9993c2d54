package dev.chagres.io;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/** Safetensors files put together by hand, right or wrong. */
final class RawFile {
    private RawFile() {}

    /** Returns length, header and data. */
    static byte[] bytes(String header, byte... data) {
        byte[] json = header.getBytes(StandardCharsets.UTF_8);
        return bytes(json.length, json, data);
    }

    static byte[] bytes(long length, byte[] json, byte... data) {
        return ByteBuffer.allocate(8 + json.length + data.length)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putLong(length)
                .put(json)
                .put(data)
                .array();
    }

    static Path write(Path folder, byte[] bytes) throws IOException {
        return Files.write(folder.resolve("raw.safetensors"), bytes);
    }

    /** Returns the field of a tensor. */
    static String tensor(String name, String dtype, String shape, long begin, long end) {
        return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":[" + begin + ","
                + end + "]}";
    }
}
