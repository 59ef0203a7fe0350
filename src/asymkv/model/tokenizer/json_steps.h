#pragma once

#include <initializer_list>
#include <string>

#include "asymkv/base/json.h"
#include "asymkv/model/tokenizer/definition.h"

// The parts of tokenizer.json around its model. `where` is the path to `file` or the object in errors. Every object is
// read whole: a type or a field that is not known is Error{kUnsupported}, because it may change ids.
namespace asymkv::tokenizer {

void check_keys(const Json& object, std::initializer_list<const char*> known, const std::string& where);
bool has_value(const Json& object, const char* field);  // there and not null
const Json& require_array(const Json& object, const std::string& field, const std::string& where);
// A value for an error message, cut to a readable length.
std::string short_dump(const Json& value);

void read_normalizer(const Json& file, const std::string& where, TokenizerDefinition& definition);
void read_pre_tokenizer(const Json& file, const std::string& where, TokenizerDefinition& definition);
void read_post_processor(const Json& file, const std::string& where, TokenizerDefinition& definition);
// The decoder must undo the spelling: ByteLevel, or for character_level (set from model.byte_fallback) the space marks
// and the bytes.
void read_decoder(const Json& file, const std::string& where, TokenizerDefinition& definition);

}  // namespace asymkv::tokenizer
