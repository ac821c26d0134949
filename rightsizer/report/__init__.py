"""What people and programs get to see: tables, documents, Events. Pure: records in, text or objects out."""
